"""The command line: one command, one module; one error boundary (main.py)."""
