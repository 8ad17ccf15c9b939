"""A launcher that is not clusterddp's own: its entry in the registry here, its code in ``over_dummy.py``."""

from clusterddp.inventory.launchers import RegisteredLauncher

NAME = "dummy"
REGISTERED = RegisteredLauncher(f"{__name__}.over_dummy")
