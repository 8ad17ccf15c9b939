"""Files that a user pushes to hosts or pulls from them."""
