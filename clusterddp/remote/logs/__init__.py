"""Workers' output files: listing and reading them, the times of their lines, the log limit."""
