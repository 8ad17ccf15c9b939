"""Asks connected hosts for what `doctor` and a run's preparation need: facts, connections between them, health."""
