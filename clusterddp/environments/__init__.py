"""Python environments from a lock file: its packages, their wheels on this machine, one environment on every host."""
