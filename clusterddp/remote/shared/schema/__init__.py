"""Records, their fields and readers, and JSON text."""
