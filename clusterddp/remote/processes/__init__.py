"""Whose a process is, and how it ends: the roster, ownership, termination, the proof that nothing is left."""
