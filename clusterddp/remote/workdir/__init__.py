"""A workdir made equal to the operator's manifest, who may change it, and the records of what was put into folders."""
