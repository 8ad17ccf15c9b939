"""Runs as Slurm jobs: plan, submit, follow and read them."""
