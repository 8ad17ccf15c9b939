"""What `doctor` and a run's preparation ask of a host, and what it answers."""
