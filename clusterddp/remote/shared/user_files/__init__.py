"""The records of the operations that push a user's files to hosts and pull them from there."""
