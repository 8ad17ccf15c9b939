"""The records and names of Slurm jobs that both sides use."""
