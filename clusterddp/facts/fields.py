"""Checked reading of what a host answered: its damage is that host's error."""

from __future__ import annotations

from typing import Any

from clusterddp.errors import HelperError
from clusterddp.remote.shared.fields import MOST, Fields

__all__ = ["MOST", "Fields", "facts_of"]


def facts_of(host: str, data: Any) -> Fields:
    """Typed access to one JSON object of a host; what is damaged raises HelperError."""
    return Fields(data, error=lambda what: HelperError(host, f"its facts are damaged: {what}"))
