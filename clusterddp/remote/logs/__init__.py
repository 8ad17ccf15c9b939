"""Workers' output files: where they are, their times, reading them, keeping them below a limit."""
