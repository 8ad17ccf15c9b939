"""The Python API: `Cluster`, and what it is made of."""
