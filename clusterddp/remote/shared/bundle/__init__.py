"""What a bundle of a run is made of: its archive, and what hosts send for it."""
