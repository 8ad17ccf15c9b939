"""Find the processes that belong to a run, end them, and prove that none is left."""
