"""Packages imported ahead of a run, and the server that keeps them for the next one."""
