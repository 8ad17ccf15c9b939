"""The values of a run's secrets, which come from this process's environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.project.crash import hide_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable


def secret_values(names: Iterable[str]) -> dict[str, str]:
    """Return the values of secrets from this process's environment, and hide them in crash files; raises UsageError."""
    required = sorted(set(names))
    for name in required:
        if name not in os.environ:
            raise UsageError(f"--secret {name}: it is not set in this environment", remedy=f"export {name} first")
    values = {name: os.environ[name] for name in required}
    hide_secrets(values.values())
    return values
