"""``clusterddp doctor``: whether a job would run, and what to do where it would not."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterddp import __version__
from clusterddp.cli import completion, option_docs
from clusterddp.cli.click_options import Checked, Number, cluster_options
from clusterddp.cli.output import put, say
from clusterddp.cli.verbose import tell
from clusterddp.errors import EXIT_FAILED, UsageError
from clusterddp.launch import option_values

if TYPE_CHECKING:
    from clusterddp.checks.model import Diagnosis


@click.command("doctor")
@cluster_options
@click.option(
    "--only", metavar="NAMES", shell_complete=completion.checks, help="Only these checks or categories, with commas."
)
@click.option("--skip", metavar="NAMES", shell_complete=completion.checks, help="All but these.")
@click.option("--share-gpus", is_flag=True, help="GPUs that others use are no fault.")
@click.option(
    "--launcher",
    type=Checked(option_values.launcher),
    metavar="NAME",
    help="How jobs are to start: ssh (default) or slurm.",
)
@click.option("--nnodes", type=Number(1), metavar="N", help="With Slurm: look at so many nodes, in a short job (1).")
@click.option("--partition", metavar="NAME", help="With Slurm: in this partition.")
@click.option("--list", "listing", is_flag=True, help="Show the checks, and run none.")
@click.option("--bench", is_flag=True, help="Measure too: bandwidth, all-reduces, GPUs, late ranks.")
@click.option("--strict", is_flag=True, help="Exit 1 also for a warning, and for what could not be looked at.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    callback=tell,
    help="Show also what passes, every host's name, and what is asked of which host.",
)
@click.option("--fix", is_flag=True, help="Show what playbooks of ours would change, and run them after a yes.")
@click.option("--yes", is_flag=True, help="With --fix: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a page with the findings, the hosts and the ways between them.",
)
@click.option(
    "--explain",
    metavar="LOGFILE",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help="Say what the known messages in a log mean, and run no check.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS…]")
def command(
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
    """Check that a job would run; name the cause and the fix where it would not."""
    if explain:
        return _explain(explain, as_json=as_json)
    if html and not html.parent.is_dir():
        raise UsageError(f"--html {html}: there is no folder {html.parent}", remedy="make it, or name another")
    _refuse_mixed(fix=fix, yes=yes, as_json=as_json, arguments=arguments)
    from clusterddp.checks.engine import select  # noqa: PLC0415 - start-up

    names = option_docs.names(only), option_docs.names(skip)
    checks = select(*names, bench=bench or listing, slurm=True)  # with which launcher is not known yet
    if listing:
        for check in checks:
            click.echo(f"{check.name}\t{check.category}\t{check.title}")
        return 0
    from clusterddp.cli.progress import Progress  # noqa: PLC0415
    from clusterddp.cli.session import open_cluster  # noqa: PLC0415

    with open_cluster(inventory, limit, starts=True) as cluster, Progress() as progress:
        cluster.progress = progress.show
        found = cluster.doctor(only=names[0], skip=names[1], bench=bench, **where)
    if html:
        _write_page(found, html)
    _show(found, as_json=as_json, verbose=verbose)
    if fix:
        from clusterddp.cli.fix import fix_by_playbooks  # noqa: PLC0415

        return fix_by_playbooks(found.results, cluster.inventory, arguments, yes=yes)
    return EXIT_FAILED if found.verdict == "fail" or (strict and found.verdict != "pass") else 0


def _show(found: Diagnosis, *, as_json: bool, verbose: bool) -> None:
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
        return
    from clusterddp.cli.doctor_tables import print_bench, print_doctor, print_pairs, print_summary  # noqa: PLC0415

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
    from clusterddp.doctor.report_html import page  # noqa: PLC0415 - start-up

    when = datetime.now(tz=timezone.utc).astimezone().isoformat(sep=" ", timespec="minutes")
    try:
        path.write_text(page(found, f"clusterddp {__version__}, {when}"), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--html {path}: {error.strerror}", remedy="name a file that can be written") from error
    say(f"wrote {path}")


def _explain(path: Path, *, as_json: bool) -> int:
    from clusterddp.doctor.explain import explain  # noqa: PLC0415 - start-up

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
