"""Which of the real frameworks are imported before a run, and that Lightning is not: it would take every rank for 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.frameworks.test_frameworks import PYTHON
from tests.integration.fork_spool import LOADED
from tests.integration.preload.test_preload import tried

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_transformers_and_accelerate_are_preloaded_and_lightning_is_not(tmp_path: Path) -> None:
    names = ["transformers", "accelerate", "transformers.trainer", "lightning_fabric", "lightning"]
    found = tried(tmp_path, names, python=PYTHON, first=LOADED)
    assert [name for name in names if not found[name][0]] == names[:3], found
    accelerate = set(found["accelerate"][1]) | set(found["transformers"][1])
    assert {"ACCELERATE_LOG_LEVEL", "HF_HOME"} <= accelerate
    later = {"ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_FSDP", "TOKENIZERS_PARALLELISM", "WANDB_PROJECT"}
    assert not accelerate & later  # so these may differ between runs, as docs/performance.md says
    for name in ("lightning_fabric", "lightning"):
        assert {"RANK", "LOCAL_RANK", "SLURM_PROCID"} & set(found[name][1]), found[name]
