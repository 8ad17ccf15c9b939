"""What is asked of a node's logs."""
