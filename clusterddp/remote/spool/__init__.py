"""A node's folder of one attempt: every path in it, its events."""
