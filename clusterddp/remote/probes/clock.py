"""The operation ``clock``, in a module of its own: it is called several times in a row, and imports next to nothing."""

import time
from typing import Dict

from ..helper.request import Request


def clock(_request: Request) -> Dict[str, int]:
    """Operation: this host's clock, ``{time_ns}``."""
    return {"time_ns": time.time_ns()}
