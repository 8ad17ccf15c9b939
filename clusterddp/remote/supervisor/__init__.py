"""The process that owns one node of a run: starts the agent, obeys stop conditions, starts the next attempt."""
