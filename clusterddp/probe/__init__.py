"""Ask open hosts: their facts, and whether they reach each other."""
