"""Converts variables for ``hosts --json``: JSON values, with secrets replaced by ``********``.

A value is secret, at any depth, when its key contains TOKEN, KEY, SECRET, PASSWORD, PASSWD or PASSPHRASE in any case,
or ends in ``_pass``. Names that end in ``_file``, ``_path`` or ``_dir`` hold a path and are shown, as is
``clusterddp_secrets``, which holds names only.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Any

from clusterddp.inventory.yamlfile import Opaque
from clusterddp.remote.shared.text.redaction import HIDDEN

_SECRET = re.compile(r"token|key|secret|passw(?:or)?d|passphrase|_pass$", re.IGNORECASE)
_PATH = re.compile(r"_(?:file|path|dir)$", re.IGNORECASE)
_NAMES_ONLY = "clusterddp_secrets"


def is_secret(key: str, value: object) -> bool:
    """Whether a variable's value must be hidden, by its name."""
    if key == _NAMES_ONLY or value is None or isinstance(value, bool) or not _SECRET.search(key):
        return False
    is_path = bool(_PATH.search(key)) and isinstance(value, str) and "\n" not in value
    return not is_path


def redacted(value: Any) -> Any:
    """A value as JSON types, with the secrets in it hidden.

    ``!vault`` and ``!unsafe`` values, dates and sets are written as ``ansible-inventory --list`` writes them.
    """
    if isinstance(value, Mapping):
        named = {json_key(key): item for key, item in value.items()}
        return {key: HIDDEN if is_secret(key, item) else redacted(item) for key, item in named.items()}
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
