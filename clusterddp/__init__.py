"""Train with PyTorch on several GPU machines from one terminal, over plain SSH.

``from clusterddp import Cluster`` offers what the command line does; see ``clusterddp.api``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterddp.api import Cluster, Run

__all__ = ["Cluster", "Run", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the API only when it is asked for: ``clusterddp --help`` does not pay for it."""
    if name in {"Cluster", "Run"}:
        from clusterddp import api  # noqa: PLC0415 - see above

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
