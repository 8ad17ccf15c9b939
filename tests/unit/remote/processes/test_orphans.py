"""Which runs are looked for among the processes of a host."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from clusterddp.remote.processes import orphans
from clusterddp.remote.shared.processes.process_records import OrphansRequest

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from clusterddp.remote.spool.layout import Spool


def test_a_mark_that_is_no_runs_id_leads_to_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can start a process with any environment, and make a folder that accuses others."""
    looked: list[str] = []

    def processes(spools: list[Spool], _: object) -> Any:
        looked.extend(spool.folder for spool in spools)
        return SimpleNamespace(find=lambda _: [])

    monkeypatch.setattr(orphans, "NodeProcesses", processes)
    request: Any = SimpleNamespace(state=str(tmp_path), read_args=lambda _: OrphansRequest(hosts=("an-odd-host",)))
    with ExitStack() as stack:
        for run in ("k3xa8w2mnp", "../../planted", "a b"):
            env = {"CLUSTERDDP_RUN_ID": run, "CLUSTERDDP_HOST": "an-odd-host"}
            process = stack.enter_context(subprocess.Popen(["/bin/cat"], env=env, stdin=subprocess.PIPE))
            assert process.stdin
            stack.callback(process.stdin.close)
        assert orphans.orphans(request) == []
    assert looked == [f"{tmp_path}/runs/k3xa8w2mnp/1/0-an-odd-host"]
