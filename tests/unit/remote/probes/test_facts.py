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


@pytest.mark.parametrize(("devices", "imports"), [(None, 2), ("0,1", 2), ("", 1), ("-1", 1)])
def test_that_torch_sees_none_of_a_hosts_gpus_is_never_kept_unless_the_environment_hides_them(
    site: Site, monkeypatch: pytest.MonkeyPatch, devices: str | None, imports: int
) -> None:
    args = {"job": {"python": sys.executable}, "state": str(site.state)}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    given = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
    for name, value in {"UUID": "1", "MODEL": "H100", "BUS": "1", **given}.items():
        monkeypatch.setenv(name, value)

    def seen() -> int:
        count: int = facts(Request(0, args, -1, -1))["torch"]["device_count"]
        return count

    site.install(count=0)
    assert seen() == 0
    site.install()  # the user has been added to the group that may open the devices
    assert seen() == seen() == (2 if imports == 2 else 0)
    assert site.imports == imports
