"""A whole run in virtual time: the supervisors' real code on simulated hosts, networks, disks and clocks."""
