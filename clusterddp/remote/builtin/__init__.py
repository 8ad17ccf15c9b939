"""Built-in programs that a run starts in place of a user's script, each in its own file."""
