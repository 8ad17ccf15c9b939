"""A run in a job of Slurm's: its nodes find each other and start, its batch script says how it ended."""
