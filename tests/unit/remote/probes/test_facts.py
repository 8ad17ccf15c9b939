"""When torch is asked anew: of whose GPUs its answer counts."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.helper.request import Request
from clusterddp.remote.probes.facts import facts
from tests.unit.remote.probes.test_torch import Site

if TYPE_CHECKING:
    from pathlib import Path

NVIDIA_SMI = """\
#!/bin/sh
case $1 in --query-gpu=*)
    echo "0, GPU-$UUID, $MODEL, 81559, 4, 550.54, Disabled, 00000000:0$BUS:00.0" ;;
esac
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A torch that counts its imports, on a host whose GPU the environment names."""
    site, program = Site(tmp_path), tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(site.folder))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # it would change torch's folder
    return site


@pytest.mark.parametrize("alike", [False, True])
def test_torch_is_asked_for_each_gpu_and_where_any_alike_will_do_for_each_model(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, alike: bool
) -> None:
    args = {"job": {"python": sys.executable}, "state": str(site.state), "alike": alike}

    def imports(uuid: str, model: str, devices: str) -> int:
        for name, value in {"UUID": uuid, "MODEL": model, "BUS": uuid[0], "CUDA_VISIBLE_DEVICES": devices}.items():
            monkeypatch.setenv(name, value)
        before = site.imports
        found = facts(Request(0, args, -1, -1))
        assert (found["torch"]["version"], [gpu["name"] for gpu in found["gpus"]]) == ("9.9", [model])
        return site.imports - before

    assert imports("1", "H100", "0") == 1
    assert imports("1", "H100", "0") == 0
    assert imports("2", "H100", "0") == int(not alike)  # another one, or another node's
    assert imports("2", "H100", "1") == int(not alike)
    assert imports("2", "H100", "0,1") == 1  # more of them
    assert imports("3", "A100", "0") == 1
