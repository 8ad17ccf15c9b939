"""A command of the operator's on this host, with its input and output, outside any run."""
