"""Chunks of files as they reach a host, from the operator and from other hosts."""
