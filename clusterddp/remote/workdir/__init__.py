"""A workdir made equal to the operator's manifest, and who may change it."""
