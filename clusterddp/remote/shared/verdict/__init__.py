"""How a run ended: node reports, failures, the verdict."""
