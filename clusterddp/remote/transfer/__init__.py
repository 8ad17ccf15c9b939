"""Receive chunks of files on a host, from the operator and from other hosts."""
