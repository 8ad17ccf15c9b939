"""The operation ``clock``, by itself: it is asked several times in a row, and imports next to nothing."""

import time
from typing import Dict

from ..helper.request import Request


def clock(_request: Request) -> Dict[str, int]:
    """This host's clock: ``{time_ns}``."""
    return {"time_ns": time.time_ns()}
