"""Skipping what needs torch where it is not installed, without importing it: that takes each pytest process 1.5 s."""

from __future__ import annotations

import importlib.util

import pytest


def need_torch(reason: str = "torchrun is part of torch") -> None:
    """Skip the test, or the file in whose top level this stands, where there is no torch."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip(reason, allow_module_level=True)
