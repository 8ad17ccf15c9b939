"""``clusterddp up``: make the cluster ready, show it, remember it for this project."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterddp.cli import host_list
from clusterddp.cli.output import say, say_warm_servers
from clusterddp.cli.session import open_cluster
from clusterddp.cli.up_tables import key_owner, print_cluster, print_host_keys
from clusterddp.errors import ClusterddpError, HostKeyError, InventoryError, UsageError
from clusterddp.inventory import ForeignInventory, ansible_cfg_notices, load
from clusterddp.inventory.hostlist import means_file
from clusterddp.launch.options import option_values
from clusterddp.project.project import find, short_path
from clusterddp.provision.ansible import config_notice, playbook_argv, run_at_terminal, source_of
from clusterddp.provision.inventory import convert
from clusterddp.provision.playbooks import find_playbook
from clusterddp.remote.shared.text.counted import counted
from clusterddp.text.folding import folded_names
from clusterddp.text.printable import one_line
from clusterddp.text.units import human_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterddp.api.cluster import Cluster
    from clusterddp.project.project import Project


def act(
    inventory: str,
    limit: str | None,
    *,
    accept_new_host_keys: bool,
    python: str | None,
    variables: tuple[str, ...],
    skip: str | None,
    spread: str,
    warm: str | None,
    keep: str | None,
    playbooks: tuple[str, ...],
    arguments: tuple[str, ...],
) -> int:
    """Make the hosts ready, show and remember them; return the exit code."""
    if arguments and not playbooks:
        remedy = "what stands behind -- is for --playbook"
        raise UsageError(f"{arguments[0]}: one inventory is needed, or hosts as a,b,c", remedy=remedy)
    project = find()
    left_out = option_values.checks(skip or ())
    inventory_variables = (*variables, *([f"clusterddp_python={python}"] if python else []))
    seconds = None if keep is None else option_values.limit(keep)
    open_hosts = partial(open_cluster, limit=limit, accept=accept_new_host_keys, keep=seconds)
    with contextlib.ExitStack() as opened:
        path = opened.enter_context(_inventory_file(inventory, inventory_variables, project))
        if playbooks:
            with open_hosts(path) as cluster:
                _ask_about_keys(cluster)  # else Ansible's ssh asks, once for each host
            _run_playbooks(playbooks, cluster, arguments)
        cluster = opened.enter_context(open_hosts(path, quiet=bool(playbooks)))
        for notice in ansible_cfg_notices():
            say(notice)
        project.remember_attempt(path)
        _say_who_can_write(cluster)
        _require_known_keys(cluster)
        if seconds is not None:
            _say_what_is_kept(cluster, seconds)
        reports = cluster.up(skip=left_out, spread=spread)
        if reports:
            print_cluster(reports)
        _say_what_is_running(cluster)
        if warm is not None:
            _start_warm_servers(cluster, warm)
        remembered_path = host_list.settle(path, project)
        project.remember(remembered_path, limit, cluster.inventory.writers)
    nodes = [report for report in reports if report.ranks]
    ranks = sum(report.nproc for report in nodes)
    spares = f", {len(reports) - len(nodes)} spare" if len(nodes) < len(reports) else ""
    exception = f" but for what --skip {','.join(left_out)} leaves out" if left_out else ""
    where = "" if remembered_path == Path(inventory) else f" in {short_path(remembered_path)}"
    what = f": {counted(len(nodes), 'node')}, {counted(ranks, 'rank')}{spares}" if reports else ""
    say(f"ready{exception}{what}; remembered {inventory}{where}")
    return 0


def _say_who_can_write(cluster: Cluster) -> None:
    """Print who else may write the inventory: by it they can run programs as this user."""
    writers = cluster.inventory.writers
    if writers and writers.others:
        say(f"{cluster.inventory.path} can be written by {writers.others}, who can run programs as you by it")


def _say_what_is_kept(cluster: Cluster, seconds: float) -> None:
    """Print to which hosts connections are kept, each until it is unused for so long, and why to others none is."""
    hosts_by_reason: dict[str, list[str]] = {}
    kept = cluster.connections.kept
    for host in [entry.name for entry in cluster.inventory.hosts if entry.name in kept]:
        hosts_by_reason.setdefault(kept[host], []).append(host)
    ends = f"until {human_duration(seconds)} after its last use, or `clusterddp down`"
    for reason, hosts in hosts_by_reason.items():
        what = f"connection not kept: {one_line(reason)}" if reason else f"connection kept {ends}"
        say(f"{folded_names(hosts)}: {what}")
    if all(entry.connection == "local" for entry in cluster.inventory.hosts):
        say("no connection is kept: all hosts are on this machine")


def _start_warm_servers(cluster: Cluster, stays: str) -> None:
    """Start a warm server (torch imported ahead) on each host, to wait for the duration ``stays``; print where."""
    begun, waits = cluster.warm(stays), human_duration(option_values.limit(stays))
    if begun:
        say(f"{folded_names(begun)}: a warm server imports torch, and waits {waits} for a run")
    if len(begun) < len(cluster.inventory.nodes):
        left = [entry.name for entry in cluster.inventory.nodes if entry.name not in begun]
        say(f"{folded_names(left)}: no warm server; it wants clusterddp_fork_server")


def _say_what_is_running(cluster: Cluster) -> None:
    """Print the live runs of this project, processes without a supervisor, and warm servers."""
    found = cluster.list_runs()
    for view in found:
        if view.live and cluster.owner.shares_project(view):
            say(f"run {view.run} of this project is {view.state()}; `clusterddp stop {view.run}` ends it")
    theirs = {view.run for view in found if not cluster.owner.owns(view)}
    for left in cluster.orphans():
        count = len(left.processes)
        what = f"{left.host}: {counted(count, 'process', 'processes')} of run {left.run} without a supervisor"
        pids = ", ".join(str(pid) for pid, _ in left.processes)
        if left.run not in theirs:
            say(f"{what}; {f'`clusterddp stop {left.run}` ends them' if left.known else f'kill them by hand: {pids}'}")
    say_warm_servers(cluster)


@contextlib.contextmanager
def _inventory_file(text: str, variables: tuple[str, ...], project: Project) -> Iterator[Path]:
    """Yield the inventory's file; that of a host list is written first, and kept for editing if `up` fails."""
    path = Path(text)
    if os.path.exists(text):  # noqa: PTH110 - Path's raises where a host list is longer than a name may be
        if variables:
            remedy = f"write them into {text}, below vars"
            raise UsageError(f"-e and --python go into the inventory of a host list; {text} is a file", remedy=remedy)
        yield _convert_foreign(path, project)
        return
    if means_file(text):
        raise InventoryError("there is no such inventory", where=text, remedy="give a file, or hosts as a,b,c")
    path = host_list.write(text, variables, project)
    try:
        yield path
    except ClusterddpError:
        shown = shlex.quote(short_path(path))
        say(f"the hosts stand in {shown}: edit it where that helps, then `clusterddp up {shown}`")
        raise


def _convert_foreign(path: Path, project: Project) -> Path:
    """Return the inventory; one that only Ansible can read is converted to YAML first. Raises InventoryError."""
    try:
        load(path)
    except ForeignInventory:
        # Ansible runs what is executable in a folder, so a project's own is never meant.
        if path.is_dir() and path.resolve() in {project.root, *project.root.parents}:
            message = "is a folder, not an inventory file, and the project lies in it, so Ansible does not read it"
            raise InventoryError(message, where=str(path), remedy="give the inventory's file") from None
        if _is_plain_script(path):
            message = "is a script that is not executable"
            raise InventoryError(message, where=str(path), remedy="chmod u+x it, if you trust it") from None
        if notice := config_notice(path):
            say(notice)
        converted_path = project.write_folder(*convert(path))  # mode 0600: it may contain decrypted secrets
        say(f"{path} is read by Ansible; what it says stands in {short_path(converted_path)}")
        return converted_path
    except InventoryError:
        pass  # `open_cluster` reports it
    return path


def _is_plain_script(path: Path) -> bool:
    """Whether it is a script that is not executable: Ansible would read it as an inventory, not run it."""
    if path.is_dir() or os.access(path, os.X_OK):
        return False
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _require_known_keys(cluster: Cluster) -> None:
    """Ask the user to confirm unknown host keys; raise HostsError or HostError if a host still cannot be reached."""
    if _ask_about_keys(cluster):
        cluster.reached()


def _ask_about_keys(cluster: Cluster) -> list[ClusterddpError]:
    """Connect to all hosts, ask about unknown host keys, all at once, and return the errors of connecting.

    The keys of hosts behind a jump host are seen only once its own is known: they are another question. Raises
    ClusterddpError without a terminal to ask.
    """
    asked: set[str] = set()
    while True:
        errors = [outcome.error for outcome in cluster.connect(writes=True) if outcome.error]
        unknown = [error for error in errors if isinstance(error, HostKeyError) and error.known_hosts_line]
        unknown = [error for error in unknown if error.known_hosts_line not in asked]
        if not unknown or not _are_trusted(unknown, errors):
            return errors
        cluster.trust(unknown)
        asked.update(error.known_hosts_line for error in unknown)


def _are_trusted(unknown: Sequence[HostKeyError], errors: Sequence[ClusterddpError]) -> bool:
    """Ask whether unknown host keys are the hosts'; raises ClusterddpError without a terminal, after other errors."""
    print_host_keys(unknown)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        for error in errors:
            if error not in unknown:
                say(str(error))
        message = f"unknown host keys: {folded_names(list(dict.fromkeys(map(key_owner, unknown))))}"
        raise ClusterddpError(message, remedy="compare the fingerprints, then add --accept-new-host-keys")
    return click.confirm("clusterddp: are these the keys of your hosts?", err=True)


def _run_playbooks(names: tuple[str, ...], cluster: Cluster, arguments: tuple[str, ...]) -> None:
    """Run playbooks on the cluster's hosts, one after the other; raises UsageError or ClusterddpError."""
    inventory = cluster.inventory
    hosts = [host.name for host in inventory.hosts] if inventory.pattern else []
    source = source_of(inventory)
    if notice := config_notice(source):
        say(notice)
    for path in [find_playbook(name) for name in names]:
        code = run_at_terminal(playbook_argv(path, source, inventory, arguments, hosts=hosts), source)
        if code:
            remedy = "what it says stands above; once that is mended, the same command runs it again"
            raise ClusterddpError(f"{path.name} failed: ansible-playbook ended with {code}", remedy=remedy)
