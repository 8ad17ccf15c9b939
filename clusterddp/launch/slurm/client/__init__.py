"""Talks to Slurm on its login host: decodes its answers, writes a run as a job's script, submits it."""
