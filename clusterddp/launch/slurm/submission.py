"""Prepare what a run asks of Slurm and what its nodes start, from inventory and options, before any node is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clusterddp.errors import UsageError
from clusterddp.hosts.zipapp import bundle
from clusterddp.inventory.variables.variable_readers import SLURM_OPTIONS
from clusterddp.launch import prepare
from clusterddp.launch import repeat as again
from clusterddp.launch.code_on_hosts import provide_code, save_code
from clusterddp.launch.make_plan import host_settings, make_plan, run_settings
from clusterddp.launch.make_record import record_without_hosts, variables_of
from clusterddp.launch.script import check_script, check_synced
from clusterddp.launch.slurm.client.batch_script import JobRequest, extra_line, nodelist, script, slurm_time
from clusterddp.launch.slurm.client.login_host import login_entry
from clusterddp.launch.slurm.client.states import MANAGER, NAME
from clusterddp.launch.slurm.embedded_code import EmbeddedCode, embed_code, refuse_shared_folder_options
from clusterddp.launch.slurm.refused_options import refuse_ignored
from clusterddp.launch.stall_limit import with_stall
from clusterddp.remote.shared.run.node_env import Node
from clusterddp.remote.shared.slurm.job_record import SlurmJob, index_of
from clusterddp.remote.shared.text.counted import counted
from clusterddp.remote.shared.text.secret_names import is_secret
from clusterddp.remote.shared.workdir.workdir_names import FRESH
from clusterddp.sync.project_files.project_tree import scan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from clusterddp.inventory import HostEntry, Inventory
    from clusterddp.launch.options import RunOptions
    from clusterddp.launch.slurm.client.login_host import LoginHost
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.run.plan import NodePlan
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.remote.shared.run.run_settings import RunSettings
    from clusterddp.runs.run_on_hosts import Site
    from clusterddp.sync.project_files.project_tree import Tree

STAND_IN_NAME = "node"  # in the plan, the host that represents all nodes
ANY_ADDRESS = "0.0.0.0"  # noqa: S104 - its address, until the nodes choose


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A run that is ready to be submitted."""

    job: SlurmJob  # what its nodes start
    script: str
    runs: Mapping[int, str]  # the ids of an array's runs, by index
    # the project's code, if the login host has to send it to the job's nodes
    code: Iterable[bytes] = field(default=(), repr=False)
    # variables whose names look like secrets: they travel as secrets do, since Slurm keeps scripts
    hidden: Mapping[str, str] = field(repr=False)


def submission(
    log_in: Callable[[], LoginHost], site: Site, options: RunOptions, *, dry: bool, inside: str = ""
) -> Submission:
    """Do everything that precedes submitting a run; unless ``dry``, its code is then on the login host.

    ``inside``: the number of an existing job that has the nodes. Raises ClusterddpError if the options are invalid, or
    the code cannot be synced.
    """
    with again.resolve_repeat(site.inventory, site.project, options) as (inventory, project, repeat):
        if repeat and repeat.record.launcher != NAME:
            raise UsageError(f"run {repeat.record.run} was no job of Slurm's", remedy="choose the inventory it had: -i")
        return _submission(log_in, site, inventory, project, options, repeat, dry=dry, inside=inside)


def _submission(
    log_in: Callable[[], LoginHost],
    site: Site,
    inventory: Inventory,
    project: Project,
    options: RunOptions,
    repeat: again.Repeat | None,
    *,
    dry: bool,
    inside: str,
) -> Submission:
    options = replace(options, script=check_script(options, project))
    options = with_stall(options, [settings_of(inventory)])
    runs = array_ids(options.array) if options.array else {}
    request = replace(slurm_request(inventory, options), inside=inside, array=options.array or "", runs=runs)
    settings = settings_of(inventory)
    tree = repeat.tree if repeat else scan(project, options.sync_limit)
    check_synced(options, project, tree)
    unshared = not nodes_share_folders(inventory)
    if unshared:
        refuse_shared_folder_options(options, inside=inside)
    login = log_in()
    run = prepare.new_run_id()
    shared_id = prepare.new_run_id() if runs else run  # the id of an array, under which its runs share a folder
    name = shared_id if options.workdir == FRESH else options.workdir or ""
    embedded = embed_code(login, project, tree, options, name, site.progress, dry=dry) if unshared else None
    if embedded:
        workdir, code = embedded.workdir, embedded.sent.order.digest
    else:
        workdir, code = _sync_to_login(login, site, project, tree, options, name, dry=dry)
    if not dry:
        site.notify(save_code(project, tree, code))
    record = _record(run, project, inventory, options, tree, code)._replace(workdir=name or None)
    if runs:
        record = record._replace(name=f"{options.name or run}.{index_of(run)}", array=shared_id)
    for notice in repeat.check(record) if repeat else ():
        site.notify(notice)
    plain_env, hidden = split_secret_values({**settings.env, **options.env}, {*options.secret, *settings.secrets})
    node = _stand_in_node(settings, workdir, project.subfolder, forks=not options.no_fork_server)
    shared, secret = _run_settings(options, plain_env, inside=inside), {*options.secret, *hidden}
    plan = make_plan(run=run, nodes=[node], options=options, settings=shared, secrets=secret, record=record)
    job = SlurmJob(
        state=login.state,
        plan=_plan_for_any_node(plan.node_plan(0), record),
        python=settings.python,
        nproc=options.nproc_per_node or settings.nproc,
        interface=settings.interface,
        inside=bool(inside),
        sent_code=embedded.sent if embedded else None,
    )
    script_text = _job_script(job, request, login, settings.ansible_python, embedded)
    return Submission(job=job, script=script_text, runs=runs, hidden=hidden, code=embedded.code if embedded else ())


def _run_settings(options: RunOptions, env: Mapping[str, str], *, inside: str) -> RunSettings:
    """Return the run's settings; Slurm enforces the time limit of a run that may be requeued."""
    settings = run_settings(options, options.rdzv_backend)._replace(env=env)
    if options.relaunch and not inside:  # the limit is for each start, and Slurm enforces it
        return settings._replace(time_limit=None)
    return settings


def _job_script(
    job: SlurmJob, request: JobRequest, login: LoginHost, python: str | None, carried: EmbeddedCode | None
) -> str:
    """Return the job's script; our code is run by ``python``, else the login host's, or any if no folder is shared."""
    if carried is None:
        path = f"{login.state}/helper/{bundle().digest}.pyz"
        return script(job, request, code=path, python=python or login.host.hello.executable)
    return script(job, request, python=python or "python3", packed=carried.packed)


def _sync_to_login(
    login: LoginHost, site: Site, project: Project, tree: Tree, options: RunOptions, name: str, *, dry: bool
) -> tuple[str, str]:
    """Put the project's code into the folder that login host and nodes share: that folder, and the code's digest."""
    site.progress("looking at the code there" if options.no_sync else "syncing")
    callbacks = (site.notify, site.progress)
    code = provide_code([login.host], project, tree, options, name, *callbacks, dry=dry)
    return code.workdirs[login.host.name], code.digest


def _plan_for_any_node(plan: NodePlan, record: RunRecord) -> NodePlan:
    """Return a node's plan without what is specific to the node."""
    settings = plan.settings._replace(tight=False)  # the nodes' clocks were not compared
    return plan._replace(env={}, peers=(), members=(), store=None, record=record, manager=MANAGER, settings=settings)


def array_ids(indices: str) -> dict[int, str]:
    """Return a new run id for each index of an array."""
    first, last = map(int, indices.partition("%")[0].split("-"))
    return {index: prepare.new_run_id() for index in range(first, last + 1)}


def _stand_in_node(settings: HostEntry, workdir: str, subfolder: str, *, forks: bool) -> Node:
    """Return the node that stands for all nodes until Slurm has chosen them."""
    # no process stays after a job, and no node replaces another
    host_values = host_settings(settings)._replace(warm=0.0, carry=())
    return Node(
        host=STAND_IN_NAME,
        nproc=1,
        address=settings.data_address or ANY_ADDRESS,
        interface=None,
        python="",
        env={},
        secrets=settings.secrets,
        settings=host_values._replace(fork_server=host_values.fork_server and forks),
        workdir=workdir,
        cwd=f"{workdir}/{subfolder}" if subfolder else workdir,
        run_dir="",
    )


def _record(run: str, project: Project, inventory: Inventory, options: RunOptions, tree: Tree, code: str) -> RunRecord:
    settings = settings_of(inventory)
    return record_without_hosts(run, project, inventory, options, tree, code)._replace(
        launcher=NAME,
        env=tuple(sorted({*options.env, *settings.env})),
        variables=variables_of([settings], options.env),
        secrets=tuple(sorted({*options.secret, *settings.secrets})),
    )


def split_secret_values(given: Mapping[str, str], secrets: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split variables for workers into those a script may contain and those it may not; ``secrets`` are in neither."""
    hidden = {name: value for name, value in given.items() if is_secret(name, value)}
    shown = {name: value for name, value in given.items() if name not in hidden and name not in secrets}
    return shown, {name: value for name, value in hidden.items() if name not in secrets}


def settings_of(inventory: Inventory) -> HostEntry:
    """Return the host whose variables apply to all nodes of a job: the first one named, else the login host."""
    return next(iter(_named_nodes(inventory)), None) or login_entry(inventory)


def nodes_share_folders(inventory: Inventory) -> bool:
    """Whether nodes share folders with the login host, according to the inventory."""
    return bool(settings_of(inventory).slurm.get("shared", True))


def _named_nodes(inventory: Inventory) -> list[HostEntry]:
    """Return the nodes that the inventory names; none for the built-in inventory, or for this machine."""
    return [entry for entry in inventory.nodes if inventory.path and entry.connection != "local"]


def slurm_request(inventory: Inventory, options: RunOptions) -> JobRequest:
    """Return what is asked of Slurm; raises UsageError."""
    refuse_ignored(options, inventory, _named_nodes(inventory))
    named = [entry.name for entry in _named_nodes(inventory)]
    if options.nnodes is None and not named:
        raise UsageError("how many nodes is not said", remedy="--nnodes 2, or name the nodes in the inventory")
    least, most = options.nnodes or (len(named), len(named))
    if named and most > len(named):
        raise UsageError(
            f"--nnodes {options.size}: the inventory names {counted(len(named), 'node')}", remedy="ask for fewer"
        )
    entry = settings_of(inventory)
    if entry.environment:
        raise UsageError("clusterddp_environment is not there under Slurm yet", remedy="set clusterddp_python")
    return JobRequest(
        nodes=(least, most),
        nodelist=nodelist(named[:least]),
        options=_sbatch_options(entry, options),
        lines=tuple(map(extra_line, entry.slurm.get("lines", ()))),
    )


def _sbatch_options(entry: HostEntry, options: RunOptions) -> dict[str, str]:
    """Return the options of sbatch from the inventory's ``clusterddp_slurm_*`` and the run's own options."""
    variables = {name: value for name, value in entry.slurm.items() if name in SLURM_OPTIONS}
    sbatch: dict[str, Any] = {name.replace("_", "-"): value for name, value in variables.items()}
    if isinstance(entry.gpus, int) and entry.gpus:
        sbatch.setdefault("gpus-per-node", str(entry.gpus))
    if options.time_limit:
        sbatch["time"] = slurm_time(options.time_limit + (0.0 if options.relaunch else options.grace))
    sbatch["requeue" if options.relaunch else "no-requeue"] = ""
    return sbatch
