"""The fork server: a process that has imported torch and forks a run's agent and workers."""
