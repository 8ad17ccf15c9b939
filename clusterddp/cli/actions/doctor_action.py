"""``clusterddp doctor``: find out whether a job would run, and how to fix what prevents it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from clusterddp import __version__
from clusterddp.checks.engine import select
from clusterddp.cli.doctor_tables import print_bench, print_doctor, print_pairs, print_summary
from clusterddp.cli.fix import fix_by_playbooks
from clusterddp.cli.output import put, say, write_file
from clusterddp.cli.progress import Progress
from clusterddp.doctor.bundle.read_bundle import is_bundle, read_bundle
from clusterddp.doctor.explain import explain
from clusterddp.doctor.report_html import doctor_page
from clusterddp.errors import EXIT_FAILED, UsageError
from clusterddp.inventory.launchers import LAUNCHERS
from clusterddp.text.units import split_names

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.checks.model import Diagnosis


def act(
    inventory: Path | None,
    limit: str | None,
    only: str | None,
    skip: str | None,
    *,
    listing: bool,
    bench: bool,
    strict: bool,
    verbose: bool,
    fix: bool,
    yes: bool,
    as_json: bool,
    html: Path | None,
    explain: Path | None,
    arguments: tuple[str, ...],
    **where: Any,  # the remaining options of `Cluster.doctor`: launcher, partition, …
) -> int:
    """Judge the hosts and print the result; or list the checks, or explain a log. Return the exit code."""
    if explain:
        return _explain(explain, as_json=as_json)
    if html and not html.parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.parent}", remedy="make it, or name another")
    _refuse_contradictions(fix=fix, yes=yes, as_json=as_json, arguments=arguments)
    names = split_names(only or ""), split_names(skip or "")
    # For all launchers: which one is used is not known yet.
    checks = select(*names, bench=bench or listing, launchers=LAUNCHERS)
    if listing:
        for check in checks:
            click.echo(f"{check.name}\t{check.category}\t{check.title}")
        return 0
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - --list and --explain reach no host

    with open_cluster(inventory, limit, starts=True) as cluster, Progress() as progress:
        cluster.progress = progress.show
        diagnosis = cluster.doctor(only=names[0], skip=names[1], bench=bench, **where)
    if html:
        _write_page(diagnosis, html)
    _print_diagnosis(diagnosis, as_json=as_json, verbose=verbose)
    if fix:
        return fix_by_playbooks(diagnosis.results, cluster.inventory, arguments, yes=yes)
    return EXIT_FAILED if diagnosis.verdict == "fail" or (strict and diagnosis.verdict != "pass") else 0


def _print_diagnosis(diagnosis: Diagnosis, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        click.echo(json.dumps(diagnosis.to_json(), indent=1))
        return
    print_doctor(diagnosis.results, verbose=verbose)
    print_pairs(diagnosis.pairs, verbose=verbose)
    if diagnosis.evidence.bench:
        print_bench(diagnosis.evidence.bench)
    print_summary(diagnosis.results)


def _refuse_contradictions(*, fix: bool, yes: bool, as_json: bool, arguments: tuple[str, ...]) -> None:
    """Refuse options of --fix without it, and --fix with --json."""
    if (arguments or yes) and not fix:
        raise UsageError(f"{arguments[0] if arguments else '--yes'} belongs behind --fix")
    if fix and as_json:
        raise UsageError("--fix with --json: Ansible's own output is no JSON", remedy="leave one out")


def _write_page(diagnosis: Diagnosis, path: Path) -> None:
    when = datetime.now(tz=timezone.utc).astimezone().isoformat(sep=" ", timespec="minutes")
    try:
        write_file(path, doctor_page(diagnosis, f"clusterddp {__version__}, {when}"))
    except OSError as error:
        raise UsageError(f"--html {path}: {error.strerror}", remedy="name a file that can be written") from error
    say(f"wrote {path}")


def _explain(path: Path, *, as_json: bool) -> int:
    """Print the known messages in a log file, or in the outputs of a bundle; return the exit code."""
    if is_bundle(path):
        messages = read_bundle(path).explain()
    else:
        with path.open(encoding="utf-8", errors="replace") as lines:
            messages = [("", message) for message in explain(lines)]
    if as_json:
        click.echo(json.dumps([{**message.to_json(), "member": name or None} for name, message in messages], indent=1))
        return 0
    if not messages:
        say(f"{path}: no known message in it")
    for name, message in messages:
        times = f" ({message.count} times)" if message.count > 1 else ""
        place = f"{path}:{name}" if name else str(path)
        put(f"{place}:{message.line}: {message.known.name}{times}: {message.known.cause}")
        put(f"    {message.text}")
        put(f"    fix: {message.known.remedy}")
        if message.known.check:
            put(f"    check: {message.known.check}")
    return 0
