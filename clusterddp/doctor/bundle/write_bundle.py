"""Write a run's bundle: collect it from the run and its hosts, strike out secrets, pack it, put it into a file."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import IO, TYPE_CHECKING

from clusterddp import __version__
from clusterddp.doctor.bundle.contents import EVERYTHING, WHY_JSON, WHY_TEXT, Contents, Heading
from clusterddp.doctor.bundle.host_parts import add_answers, ask_run
from clusterddp.errors import UsageError
from clusterddp.project.crash import LIBRARIES, known_secrets, version
from clusterddp.remote.shared.bundle.archive import pack
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.remote.shared.text.redaction import MIN_SECRET
from clusterddp.remote.shared.text.secret_names import hide_named, values_by_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterddp.runs.run import Run
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.runs.why import Why

FOLDER = "bundles"  # in a project's ``.clusterddp/``
MAX_FILES = 20  # bundles kept there
_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}-[a-z0-9]+\.tar\.gz")  # of one that was put there
HOSTS_TIMEOUT = 15.0  # seconds for what hosts are asked for


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenBundle:
    """A bundle that lies in a file."""

    path: Path
    size: int  # bytes
    members: int
    silent: tuple[str, ...]  # the hosts of which it has nothing


def write_bundle(run: Run, view: RunView, target: Path | None = None) -> WrittenBundle:
    """Collect the bundle of a run and write it to ``target``, which must not exist, 0600.

    ``view``: what hosts reported of the run just now, with evidence. Without a target it goes into the project's
    ``.clusterddp/bundles``. Raises UsageError if it cannot be written.
    """
    if target is None:
        data, contents = _collect(run, view)
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%f")
        target = run.cluster.project.write(f"{FOLDER}/{now}-{run.id}.tar.gz", data)
        ours = [path for path in target.parent.iterdir() if _NAME.fullmatch(path.name) and path != target]
        for old in sorted(ours)[: max(0, len(ours) + 1 - MAX_FILES)]:
            old.unlink(missing_ok=True)
    else:
        with new_file(target) as out:
            data, contents = _collect(run, view)
            out.write(data)
    silent = tuple(host for host, what, _ in contents.missing if what == EVERYTHING)
    return WrittenBundle(path=target, size=len(data), members=len(contents.parts) + 1, silent=silent)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a new 0600 file at ``path``; if the block fails, it is removed. Raises UsageError if it cannot be made."""
    made = False
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        made = True
        with os.fdopen(handle, "wb") as out:
            yield out
    except FileExistsError:
        raise UsageError(f"{path} is there already", remedy="name another: -o FILE") from None
    except BaseException as error:
        if made:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise UsageError(f"{path}: cannot be written ({error.strerror})", remedy="name another: -o FILE") from error
        raise


def _collect(run: Run, view: RunView) -> tuple[bytes, Contents]:
    """Return the archive, and what is in it."""
    run = run.at(view)
    answers = ask_run(run, view, HOSTS_TIMEOUT)
    contents, why = Contents(), answers.why
    contents.add(WHY_TEXT, "why the run does not go on, or how it ended", why_text(why))
    contents.add(WHY_JSON, "the same for programs", why.to_json())
    _add_run(contents, run, view)
    hidden = add_answers(contents, run, view, answers)
    now = datetime.now(timezone.utc)
    heading = Heading(
        run=run.id,
        script=" ".join([run.record.script or "", *run.record.argv]),
        sentence=why.sentence,
        when=now.isoformat(sep=" ", timespec="seconds"),
        version=__version__,
        secrets=run.record.secrets,
    )
    members = contents.packable(f"clusterddp-{run.id}", heading, hidden | secrets_here(run))
    return pack(members, int(now.timestamp())), contents


def why_text(why: Why) -> str:
    """Write the answer as the command prints it."""
    remedy = [f"remedy: {why.remedy}"] if why.remedy else []
    return "".join(f"{line}\n" for line in [why.sentence, *(f"  {line}" for line in why.evidence), *remedy])


def _add_run(contents: Contents, run: Run, view: RunView) -> None:
    """Add what is known of the run as a whole."""
    verdict = view.verdict()
    if verdict:
        lines = [verdict.line, *verdict.preface]
        contents.add("verdict.txt", "how the run ended", "".join(f"{line}\n" for line in lines))
    else:
        contents.lack("verdict.txt", f"the run is {view.state()}")
    status, record = hide_named(view.to_json()), hide_named(to_fields(view.record))
    contents.add("status.json", "the run, host by host", status)
    contents.add("record.json", "what was started, by whom, with which options", record)
    contents.add("versions.json", "versions here, and those the run recorded", _versions(view))
    contents.add("inventory.json", "the hosts and their variables", run.cluster.inventory.to_json())


def _versions(view: RunView) -> dict[str, object]:
    here = {name: version(name) for name in LIBRARIES}
    python = f"{platform.python_version()} on {platform.platform()}"
    return {"run": dict(view.record.versions), "here": {"clusterddp": __version__, "python": python, **here}}


def secrets_here(run: Run) -> set[str]:
    """Return the secret values that this machine knows: of its environment, the inventory, the run's options."""
    found = {os.environ.get(name, "") for name in run.record.secrets} | known_secrets()
    record = run.record
    for source in (*(host.vars for host in run.cluster.inventory.hosts), record.argv, record.options):
        found.update(values_by_name(source))
    return {value for value in found if len(value) >= MIN_SECRET}
