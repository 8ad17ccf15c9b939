"""None: what operators do with tensors without data is asked by the compiler alone; it is a fifth of torch's import."""
