"""Ships to hosts: the standard library alone, relative imports only, Python 3.8."""
