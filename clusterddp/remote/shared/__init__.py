"""Code for both sides of a connection: frames, schemas, manifests. The operator imports nothing else of `remote`."""
