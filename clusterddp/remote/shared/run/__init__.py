"""Data that describes a run: plan, node environment, records, events, log frames."""
