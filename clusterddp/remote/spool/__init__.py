"""The spool: a node's folder of one attempt, with all paths and records in it, and its events."""
