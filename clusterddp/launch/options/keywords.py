"""The keywords of ``Cluster``'s methods, and how they are checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from clusterddp.launch.options import option_values as values
from clusterddp.project.project import Project, find
from clusterddp.text.units import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


class ClusterKeywords(TypedDict, total=False):
    """The keywords of the constructors of ``Cluster``.

    Attributes:
        project: The project, or a folder in it; by default the current folder's.
        accept_new_host_keys: Record unknown host keys instead of refusing them; a changed one is always refused.
        notify: Receives notices, a line each.
        progress: Receives the current activity, in a few words.
        ask: Asks the user for a passphrase or a second factor, one prompt at a time; None: there is no user to ask.
        connect_timeout: Seconds, or a duration, for the TCP connection to a host; ssh's settings count first.
        keep: Keep each connection to a host that is opened, for later commands too, until it has not been used for so
            many seconds, or such a duration (``1h``); ``Cluster.down`` ends them. None: keep none.
    """

    project: Project | str | Path | None
    accept_new_host_keys: bool
    notify: Callable[[str], None]
    progress: Callable[[str], None]
    ask: Callable[[str], str] | None
    connect_timeout: float | str
    keep: float | str | None


class DoctorKeywords(TypedDict, total=False):
    """The keywords of ``Cluster.doctor``: the command line's options by their names.

    Attributes:
        only: Names of checks or categories, in any case, as ``"gpus,network"`` or several; none means all.
        skip: Names of those to leave out.
        bench: Also measure, on hosts where nothing else computes.
        share_gpus: Others' work on the GPUs is expected; it becomes a warning.
        all_pairs: Of more than 32 hosts, too, connect every two with each other.
        launcher: The launcher whose hosts are judged; None leaves it to the inventory. With ``slurm``, the nodes of a
            short job are judged.
        nnodes: How many of them; None: those that the inventory names, or else one.
        partition: Slurm's partition, in place of the inventory's.
    """

    only: str | Iterable[str]
    skip: str | Iterable[str]
    bench: bool
    share_gpus: bool
    all_pairs: bool
    launcher: str | None
    nnodes: int | None
    partition: str | None


class ExecKeywords(TypedDict, total=False):
    """The keywords of ``Cluster.exec``: the command line's options by their names.

    Attributes:
        shell: A text for ``bash -c`` instead of a program.
        bare: Use the login's environment and home; otherwise, as for a worker, setup lines, interpreter and workdir.
        timeout: Seconds, or a duration such as ``5m``, after which the command is ended; None: no limit.
        grace: Seconds, or a duration, between SIGTERM and SIGKILL when the command is ended.
        sync: First sync the project's code to the hosts that answer.
    """

    sync: bool
    shell: str | None
    bare: bool
    timeout: float | str | None
    grace: float | str


CLUSTER_READERS: Mapping[str, Callable[[Any], object]] = {
    "project": values.optional(lambda given: given if isinstance(given, Project) else find(values.folder(given))),
    "accept_new_host_keys": values.flag,
    "notify": values.callback,
    "progress": values.callback,
    "ask": values.optional(values.callback),
    "connect_timeout": values.limit,
    "keep": values.optional(values.limit),
}
DOCTOR_READERS: Mapping[str, Callable[[Any], object]] = {
    "only": values.checks,
    "skip": values.checks,
    "bench": values.flag,
    "share_gpus": values.flag,
    "all_pairs": values.flag,
    "launcher": values.optional(values.checked(values.launcher)),
    "nnodes": values.optional(values.number(1)),
    "partition": values.optional(values.text),
}
EXEC_READERS: Mapping[str, Callable[[Any], object]] = {
    "shell": values.optional(values.text),
    "bare": values.flag,
    "timeout": values.optional(values.limit),
    "grace": duration,
    "sync": values.flag,
}
