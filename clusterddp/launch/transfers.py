"""What a Cluster brings to its hosts and back, besides what a run does: the project's code.

The base of ``api.Cluster``, which has the hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.launch import code, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import Inventory
    from clusterddp.project import Project
    from clusterddp.sync.result import SyncResult


class Transfers:
    """Files between this machine and the hosts of a cluster."""

    inventory: Inventory
    project: Project
    notify: Callable[[str], None]
    progress: Callable[[str], None]

    def reached(self) -> list[Host]:
        """Every node and spare, open."""
        raise NotImplementedError

    def sync(self, *, dry: bool = False, limit: int | None = None) -> SyncResult:
        """Bring the project's code to every node and spare; with ``dry`` only say what that would change.

        Args:
            dry: Only look.
            limit: Bytes that it may hold, and any number of files; None is the default.

        Raises:
            ClusterddpError: a live run uses a workdir with other code, or the code cannot be synced.
        """
        prepare.nodes(self.inventory)
        return code.synced_alone(self.reached(), self.project, self.notify, self.progress, limit, dry=dry)
