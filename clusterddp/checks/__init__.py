"""The checks of `doctor`: functions that judge what was collected from the hosts, without any I/O."""
