"""Benchmarks: scripts that measure; `make bench` runs them."""
