"""What is said of a bundle that was written; and `run --bundle`, which writes one when the run has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.cli.output import say
from clusterddp.errors import ClusterddpError
from clusterddp.project.project import short_path
from clusterddp.remote.shared.run.run_state import RunState
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names
from clusterddp.text.units import human_size

if TYPE_CHECKING:
    from clusterddp.doctor.bundle.write_bundle import WrittenBundle
    from clusterddp.runs.run import Run
    from clusterddp.runs.view.verdict_lines import Verdict


def written_line(run: str, written: WrittenBundle) -> str:
    """Say what was written, and of which hosts it has nothing."""
    without = f"; nothing of {folded_names(list(written.silent))}, as README.txt in it says" if written.silent else ""
    files = counted(written.members, "file")
    return f"bundle of run {run}: {short_path(written.path)} ({files}, {human_size(written.size)}){without}"


def write_after_failure(run: Run, verdict: Verdict) -> None:
    """Write a bundle of a run that has failed; if that cannot be done, only say so: the verdict stands."""
    from clusterddp.doctor.bundle.write_bundle import write_bundle  # noqa: PLC0415 - few runs fail

    if verdict.state in {RunState.SUCCEEDED, RunState.STOPPED}:
        return
    try:
        say(written_line(run.id, write_bundle(run, run.view(quiet=True))))
    except ClusterddpError as error:
        say(f"--bundle: {error}; `clusterddp bundle {run.id}` tries again")
