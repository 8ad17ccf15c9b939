"""Bytes between two processes: frames, chunks, streams, partial files."""
