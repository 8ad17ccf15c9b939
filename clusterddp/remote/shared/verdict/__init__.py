"""How a run ended: a node's end, failures, the verdict."""
