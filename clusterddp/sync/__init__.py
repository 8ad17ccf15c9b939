"""The project's files: which there are, what hosts lack, sending it."""
