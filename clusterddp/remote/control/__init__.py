"""Run control: the authenticated connections between the supervisors of one run."""
