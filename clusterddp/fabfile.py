"""The tasks as a collection for a fabfile, where users import it; api/fabfile.py makes it."""

from clusterddp.api.fabfile import namespace

__all__ = ["namespace"]
