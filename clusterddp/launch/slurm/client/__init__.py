"""Slurm as an operator needs it: its answers read, a run written as a job's script, its login host asked."""
