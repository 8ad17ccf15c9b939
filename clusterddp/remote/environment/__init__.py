"""Environments built of wheels on a host: built from what the operator sent, listed, removed.

No index is ever asked.
"""
