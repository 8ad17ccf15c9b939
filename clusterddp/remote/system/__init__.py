"""What hosts' code needs of the machine: `/proc`, ports, disks, bounded child processes, nvidia-smi. Knows no runs."""
