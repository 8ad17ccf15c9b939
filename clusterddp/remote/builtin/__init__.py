"""Programs of ours that a run starts in place of a user's script, each a file of its own."""
