"""Transfers chunks of files between this machine and the hosts."""
