"""What the operator asks of a node's supervisor and of the host that starts it, and what they answer."""
