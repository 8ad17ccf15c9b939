"""Workers' output files: list and read them, find the times of their lines, enforce the log limit."""
