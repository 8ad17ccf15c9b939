"""What both sides of a connection use: frames, schemas, manifests. Of `remote` the operator imports only this."""
