"""Run an operation as a helper's child would: a real Request over real pipes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from clusterddp.remote.helper.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable


def run_operation(operation: Callable[[Request], Any], args: dict[str, Any]) -> Any:
    """Its result; the frames it sends are not looked at."""
    operator_reads, sink = os.pipe()
    source, operator_writes = os.pipe()
    try:
        return operation(Request(1, args, source, sink))
    finally:
        for handle in (operator_reads, sink, source, operator_writes):
            os.close(handle)
