"""What both sides know of a Slurm job."""
