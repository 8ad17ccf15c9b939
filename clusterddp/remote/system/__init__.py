"""The machine below: `/proc`, ports, disks, bounded child processes, nvidia-smi. Knows nothing of runs."""
