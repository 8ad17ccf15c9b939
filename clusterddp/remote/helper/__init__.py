"""The helper process on a host that serves an operator's connection: one loop over frames, a child per operation."""
