"""How a launch plan is carried out: over SSH, or by Slurm."""
