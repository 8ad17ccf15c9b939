"""A workdir made equal to the operator's manifest."""
