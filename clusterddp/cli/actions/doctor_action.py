"""``clusterddp doctor``: find out whether a job would run, and how to fix what prevents it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from clusterddp import __version__
from clusterddp.checks.engine import select
from clusterddp.cli import option_checks
from clusterddp.cli.doctor_tables import print_bench, print_doctor, print_pairs, print_summary
from clusterddp.cli.fix import fix_by_playbooks
from clusterddp.cli.output import put, say
from clusterddp.cli.progress import Progress
from clusterddp.doctor.explain import explain
from clusterddp.doctor.report_html import doctor_page
from clusterddp.errors import EXIT_FAILED, UsageError
from clusterddp.inventory.launchers import LAUNCHERS

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
    **where: Any,
) -> int:
    """Judge the hosts and print the result; or list the checks, or explain a log. Return the exit code."""
    if explain:
        return _explain(explain, as_json=as_json)
    if html and not html.parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.parent}", remedy="make it, or name another")
    _refuse_mixed(fix=fix, yes=yes, as_json=as_json, arguments=arguments)
    names = option_checks.split_names(only), option_checks.split_names(skip)
    checks = select(*names, bench=bench or listing, launchers=LAUNCHERS)  # with which launcher is not known yet
    if listing:
        for check in checks:
            click.echo(f"{check.name}\t{check.category}\t{check.title}")
        return 0
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415 - --list and --explain reach no host

    with open_cluster(inventory, limit, starts=True) as cluster, Progress() as progress:
        cluster.progress = progress.show
        found = cluster.doctor(only=names[0], skip=names[1], bench=bench, **where)
    if html:
        _write_page(found, html)
    _show(found, as_json=as_json, verbose=verbose)
    if fix:
        return fix_by_playbooks(found.results, cluster.inventory, arguments, yes=yes)
    return EXIT_FAILED if found.verdict == "fail" or (strict and found.verdict != "pass") else 0


def _show(found: Diagnosis, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
        return
    print_doctor(found.results, verbose=verbose)
    print_pairs(found.pairs, verbose=verbose)
    if found.evidence.bench:
        print_bench(found.evidence.bench)
    print_summary(found.results)


def _refuse_mixed(*, fix: bool, yes: bool, as_json: bool, arguments: tuple[str, ...]) -> None:
    if (arguments or yes) and not fix:
        raise UsageError(f"{arguments[0] if arguments else '--yes'} belongs behind --fix")
    if fix and as_json:
        raise UsageError("--fix with --json: Ansible's own output is no JSON", remedy="leave one out")


def _write_page(found: Diagnosis, path: Path) -> None:
    when = datetime.now(tz=timezone.utc).astimezone().isoformat(sep=" ", timespec="minutes")
    try:
        path.write_text(doctor_page(found, f"clusterddp {__version__}, {when}"), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path}: {error.strerror}", remedy="name a file that can be written") from error
    say(f"wrote {path}")


def _explain(path: Path, *, as_json: bool) -> int:
    with path.open(encoding="utf-8", errors="replace") as lines:
        found = explain(lines)
    if as_json:
        click.echo(json.dumps([one.to_json() for one in found], indent=1))
        return 0
    if not found:
        say(f"{path}: no known message in it")
    for one in found:
        times = f" ({one.count} times)" if one.count > 1 else ""
        put(f"{path}:{one.line}: {one.known.name}{times}: {one.known.cause}")
        put(f"    {one.text}")
        put(f"    fix: {one.known.remedy}")
        if one.known.check:
            put(f"    check: {one.known.check}")
    return 0
