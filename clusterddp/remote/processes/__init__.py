"""Which processes belong to a run, ending them, and proving that none is left."""
