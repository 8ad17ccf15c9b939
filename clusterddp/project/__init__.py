"""The project: its folder, its id, and what is remembered of it there."""
