"""How long each step with a host took, as log records that ``-v`` shows and ``run --timeline`` collects."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("clusterddp.spans")


def log_span(host: str, what: str, took: float, text: str = "") -> None:
    """Log a step that has just ended after ``took`` seconds; the record's ``span`` is (host, what, seconds)."""
    LOGGER.debug("%s: %s", host, text or f"{what}: {took * 1000:.0f} ms", extra={"span": (host, what, took)})
