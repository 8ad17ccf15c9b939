"""The byte formats between two processes: frames, chunks, chunk streams, partial files."""
