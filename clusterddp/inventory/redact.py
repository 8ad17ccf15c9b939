"""Converts variables for ``hosts --json``: JSON values, with secrets replaced by ``********``.

Secrets are found by their keys, at any depth (remote/shared/text/secret_names.py).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from clusterddp.inventory.yaml_values import Opaque
from clusterddp.remote.shared.text.redaction import HIDDEN
from clusterddp.remote.shared.text.secret_names import is_secret


def redacted(value: Any) -> Any:
    """A value as JSON types, with the secrets in it hidden.

    ``!vault`` and ``!unsafe`` values, dates and sets are written as ``ansible-inventory --list`` writes them.
    """
    if isinstance(value, Mapping):
        by_name = {json_key(key): item for key, item in value.items()}
        return {key: HIDDEN if is_secret(key, item) else redacted(item) for key, item in by_name.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((redacted(item) for item in value), key=str)
    if isinstance(value, Opaque):
        return {f"__ansible_{value.kind}": value.text}
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value


def json_key(key: object) -> str:
    """A mapping's key as Ansible's JSON writes it."""
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return str(redacted(key))
