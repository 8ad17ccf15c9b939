"""The process at the other end of an operator's connection: one loop over frames, a child per operation."""
