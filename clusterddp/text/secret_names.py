"""Which variables hold a secret, by their names.

A value is secret when its name contains TOKEN, KEY, SECRET, PASSWORD, PASSWD or PASSPHRASE in any case, or ends in
``_pass``. Names that end in ``_file``, ``_path`` or ``_dir`` hold a path and are shown, as is ``clusterddp_secrets``,
which holds names only.
"""

from __future__ import annotations

import re

_SECRET = re.compile(r"token|key|secret|passw(?:or)?d|passphrase|_pass$", re.IGNORECASE)
_PATH = re.compile(r"_(?:file|path|dir)$", re.IGNORECASE)
_NAMES_ONLY = "clusterddp_secrets"


def is_secret(key: str, value: object) -> bool:
    """Whether a variable's value must be hidden, by its name."""
    if key == _NAMES_ONLY or value is None or isinstance(value, bool) or not _SECRET.search(key):
        return False
    is_path = bool(_PATH.search(key)) and isinstance(value, str) and "\n" not in value
    return not is_path
