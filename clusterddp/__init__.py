"""Train with PyTorch on several GPU machines from one terminal, over plain SSH.

``from clusterddp import Cluster`` offers what the command line does; see ``clusterddp.api.cluster``. Every error, every
option and every type that its calls take or return can be imported from here too; nothing is loaded before it is asked
for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterddp.api.cluster import Cluster
    from clusterddp.checks.model import CheckResult, Diagnosis
    from clusterddp.environments.removal import EnvironmentFound
    from clusterddp.errors import (
        AuthenticationError,
        ClusterddpError,
        DiscoverError,
        HelperError,
        HostError,
        HostKeyError,
        HostsError,
        InventoryError,
        LockError,
        NoPythonError,
        PlanError,
        RunError,
        RunRemovedError,
        ScriptError,
        SyncError,
        UnreachableError,
        UsageError,
    )
    from clusterddp.hosts.client import Host
    from clusterddp.hosts.fanout import Outcome
    from clusterddp.inventory.values import Inventory
    from clusterddp.inventory.variables.variable_table import HostEntry
    from clusterddp.launch.host_report import HostReport
    from clusterddp.launch.launcher import Launcher
    from clusterddp.launch.make_plan import LaunchPlan
    from clusterddp.launch.options import RunOptions
    from clusterddp.launch.options.keywords import ClusterKeywords, DoctorKeywords, ExecKeywords
    from clusterddp.launch.options.run_keywords import RunKeywords
    from clusterddp.logs.lines import LogLine
    from clusterddp.logs.selection import Selection, Words
    from clusterddp.project.project import Project
    from clusterddp.remote.shared.processes.worker_stacks import WorkerStack
    from clusterddp.remote.shared.run.run_record import RunRecord
    from clusterddp.runs.cleanup import Cleaned, Orphans
    from clusterddp.runs.difference import Difference
    from clusterddp.runs.holdings import EverythingRemoved, Holdings
    from clusterddp.runs.named_workdirs import WorkdirBeside
    from clusterddp.runs.proof import Proof
    from clusterddp.runs.run import Run
    from clusterddp.runs.run_on_hosts import Site, Wanted
    from clusterddp.runs.signals import Signalled
    from clusterddp.runs.stopped_ranks import PdbMessage, PdbSession, StoppedRank
    from clusterddp.runs.streams import Streams
    from clusterddp.runs.top_looks import TopLook
    from clusterddp.runs.view.run_view import RunView
    from clusterddp.runs.view.verdict_lines import Verdict
    from clusterddp.runs.watch_hosts import Top
    from clusterddp.runs.why import Why
    from clusterddp.shell.command import Command, Executed
    from clusterddp.shell.execution import Execution
    from clusterddp.sync.code_diff import FileDiff
    from clusterddp.sync.deliver import Delivered
    from clusterddp.sync.result import HostSync, SyncResult
    from clusterddp.sync.transfer.collect import Pulled

__all__ = [
    "AuthenticationError",
    "CheckResult",
    "Cleaned",
    "Cluster",
    "ClusterKeywords",
    "ClusterddpError",
    "Command",
    "Delivered",
    "Diagnosis",
    "Difference",
    "DiscoverError",
    "DoctorKeywords",
    "EnvironmentFound",
    "EverythingRemoved",
    "ExecKeywords",
    "Executed",
    "Execution",
    "FileDiff",
    "HelperError",
    "Holdings",
    "Host",
    "HostEntry",
    "HostError",
    "HostKeyError",
    "HostReport",
    "HostSync",
    "HostsError",
    "Inventory",
    "InventoryError",
    "LaunchPlan",
    "Launcher",
    "LockError",
    "LogLine",
    "NoPythonError",
    "Orphans",
    "Outcome",
    "PdbMessage",
    "PdbSession",
    "PlanError",
    "Project",
    "Proof",
    "Pulled",
    "Run",
    "RunError",
    "RunKeywords",
    "RunOptions",
    "RunRecord",
    "RunRemovedError",
    "RunView",
    "ScriptError",
    "Selection",
    "Signalled",
    "Site",
    "StoppedRank",
    "Streams",
    "SyncError",
    "SyncResult",
    "Top",
    "TopLook",
    "UnreachableError",
    "UsageError",
    "Verdict",
    "Wanted",
    "Why",
    "Words",
    "WorkdirBeside",
    "WorkerStack",
    "__version__",
]
__version__ = "0.1.0"

# The module of each name: as above, for a running program.
_NAMES = {
    "clusterddp.api.cluster": "Cluster",
    "clusterddp.checks.model": "CheckResult Diagnosis",
    "clusterddp.environments.removal": "EnvironmentFound",
    "clusterddp.errors": (
        "AuthenticationError ClusterddpError DiscoverError HelperError HostError HostKeyError HostsError InventoryError"
        " LockError NoPythonError PlanError RunError RunRemovedError ScriptError SyncError UnreachableError UsageError"
    ),
    "clusterddp.hosts.client": "Host",
    "clusterddp.hosts.fanout": "Outcome",
    "clusterddp.inventory.values": "Inventory",
    "clusterddp.inventory.variables.variable_table": "HostEntry",
    "clusterddp.launch.launcher": "Launcher",
    "clusterddp.launch.options.keywords": "ClusterKeywords DoctorKeywords ExecKeywords",
    "clusterddp.launch.options": "RunOptions",
    "clusterddp.launch.options.run_keywords": "RunKeywords",
    "clusterddp.launch.make_plan": "LaunchPlan",
    "clusterddp.launch.host_report": "HostReport",
    "clusterddp.logs.lines": "LogLine",
    "clusterddp.logs.selection": "Selection Words",
    "clusterddp.project.project": "Project",
    "clusterddp.remote.shared.run.run_record": "RunRecord",
    "clusterddp.runs.named_workdirs": "WorkdirBeside",
    "clusterddp.runs.cleanup": "Cleaned Orphans",
    "clusterddp.runs.difference": "Difference",
    "clusterddp.runs.holdings": "EverythingRemoved Holdings",
    "clusterddp.runs.run_on_hosts": "Site Wanted",
    "clusterddp.runs.proof": "Proof",
    "clusterddp.runs.run": "Run",
    "clusterddp.runs.signals": "Signalled",
    "clusterddp.remote.shared.processes.worker_stacks": "WorkerStack",
    "clusterddp.runs.stopped_ranks": "PdbMessage PdbSession StoppedRank",
    "clusterddp.runs.streams": "Streams",
    "clusterddp.runs.watch_hosts": "Top",
    "clusterddp.runs.top_looks": "TopLook",
    "clusterddp.runs.view.verdict_lines": "Verdict",
    "clusterddp.runs.why": "Why",
    "clusterddp.runs.view.run_view": "RunView",
    "clusterddp.shell.command": "Command Executed",
    "clusterddp.shell.execution": "Execution",
    "clusterddp.sync.code_diff": "FileDiff",
    "clusterddp.sync.transfer.collect": "Pulled",
    "clusterddp.sync.deliver": "Delivered",
    "clusterddp.sync.result": "HostSync SyncResult",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a name's module when it is first used, so that ``clusterddp --help`` loads none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
