"""Environments built of wheels on a host, without an index: built from what the operator sent, listed, removed."""
