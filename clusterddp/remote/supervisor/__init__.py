"""The process that owns one node of one run: starts the agent, obeys stop conditions, starts the next attempt."""
