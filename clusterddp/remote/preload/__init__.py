"""Packages imported before a run, and the warm server that keeps them for the next one."""
