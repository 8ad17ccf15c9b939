"""Runs on hosts reached over SSH: start them, and let more hosts join them."""
