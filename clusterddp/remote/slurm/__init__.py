"""Runs inside a Slurm job: nodes meet and start, and the batch script reports how the run ended."""
