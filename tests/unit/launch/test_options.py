"""A run's options from Python: the command line's names and spellings, checked where they are given."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

import click
import pytest

from clusterddp.api.cluster import Cluster
from clusterddp.cli.commands.run import command
from clusterddp.errors import UsageError
from clusterddp.inventory import built_in
from clusterddp.launch.options import DECLARED, RunOptions, run_options
from clusterddp.project.project import find
from tests import run_keywords

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OF_A_TERMINAL = {
    "inventory",
    "detach",
    "show",
    "show_agents",
    "show_all",
    "silence",
    "fold",
    "result",
    "timeline",
    "bundle",
    "dry_run",
    "join",
    "env_file",
    "notify",
}


def test_the_names_are_those_of_the_command_line() -> None:
    names = {one.name for one in fields(RunOptions)}
    assert names == {one.name for one in command.params} - OF_A_TERMINAL
    for one in command.params:
        if isinstance(one, click.Option):
            assert f"--{(one.name or '').replace('_', '-')}" in one.opts


def test_the_keywords_are_those_that_the_options_declare() -> None:
    written = run_keywords.MODULE.read_text(encoding="utf-8")
    assert written == run_keywords.module(), "`python -m tests.run_keywords` writes them anew"


def test_a_default_is_a_value_that_its_reader_takes() -> None:
    for one in fields(RunOptions):
        if one.default not in {MISSING, None}:
            assert DECLARED[one.name].read(one.default) == one.default


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("time_limit", "5m", 300.0),
        ("time_limit", 90, 90.0),
        ("time_limit", None, None),
        ("stall", "10m", 600.0),
        ("stall", 0, 0.0),
        ("grace", "2s", 2.0),
        ("nnodes", 4, (4, 4)),
        ("nnodes", "2:4", (2, 4)),
        ("nnodes", (2, 4), (2, 4)),
        ("nproc_per_node", "auto", None),
        ("nproc_per_node", "3", 3),
        ("sync_limit", "2G", 2_000_000_000),
        ("log_limit", 1000, 1000),
        ("skip", "shm, cores", ("shm", "cores")),
        ("skip", ["shm"], ("shm",)),
        ("torchrun_arg", "--role=x", ("--role=x",)),
        ("args", ["--lr", "3"], ("--lr", "3")),
        ("env", {"A": "1"}, {"A": "1"}),
        ("gpus", "free:2", "free:2"),
        ("max_restarts", 3, 3),
    ],
)
def test_a_value_is_read_as_on_the_command_line(name: str, given: Any, value: object) -> None:
    assert getattr(RunOptions(**{"script": "train.py", name: given}), name) == value


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("time_limit", "5x", "time_limit: '5x' is no duration; write 90, 90s, 5m, 2h or 3d"),
        ("time_limit", 0, "time_limit: 0 is no time at all; write 5m, or leave it out"),
        ("time_limit", float("nan"), "time_limit: nan is no duration"),
        ("time_limit", True, "time_limit: True is no duration"),
        ("stall", "5s", "stall: '5s' is too short to tell a hang from a slow step; write 10s or more, or 0 for no"),
        ("stall", "x", "stall: 'x' is no duration"),
        ("on_stall", "kill", "on_stall: 'kill' is not one of report, restart, stop"),
        ("grace", None, "grace: None is no duration"),
        ("grace", -1, "grace: -1 is no duration"),
        ("nnodes", 0, "nnodes: '0' is no number of nodes"),
        ("nnodes", 2.0, "nnodes: '2.0' is no number of nodes"),
        ("nnodes", (4, 2), "nnodes: '4:2': the least is more than the most"),
        ("nproc_per_node", 0, "nproc_per_node: '0' is neither auto nor a number of at least 1"),
        ("max_restarts", 1.5, "max_restarts: 1.5 is no number of at least 0"),
        ("sync_limit", True, "sync_limit: True is no size"),
        ("args", "--lr 3", "args: '--lr 3' is no list of texts; write ['--lr', '3']"),
        ("args", ["--lr", 3], "args: 3 is no text; write '3'"),
        ("env", ["A=1"], "env: ['A=1'] is no mapping"),
        ("env", {"A": 1}, "env: A: 1 is no text; write '1'"),
        ("env", {"RANK": "0"}, "env: RANK is set by torchrun for each worker"),
        ("secret", "NOT_SET_HERE", "secret: NOT_SET_HERE is not set in this environment"),
        ("skip", "shmm", "skip: 'shmm' is no check"),
        ("gpus", 2, "gpus: 2 is no text"),
        ("gpus", "first", "gpus: first"),
        ("no_sync", "no", "no_sync: 'no' is neither True nor False"),
        ("on_disconnect", "go", "on_disconnect: 'go' is not one of keep, stop"),
        ("rdzv_backend", "etcd", "rdzv_backend: 'etcd' is not one of auto, c10d, static"),
        ("launcher", "pbs", "launcher: 'pbs' is not one of ssh, slurm"),
        ("torchrun_arg", ["--nnodes=2"], "torchrun_arg: --nnodes=2: --nnodes is set by clusterddp itself"),
        ("name", "a\nb", "name: 'a\\nb' is no name"),
        ("name", ".", "name: '.' is no name"),
        ("script", 3, "script: 3 is no text"),
    ],
)
def test_a_wrong_value_is_refused_at_the_call_by_name(name: str, given: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunOptions(**{"script": "train.py", name: given})
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda api: api("i.yaml"), "inventory: 'i.yaml' is no Inventory; Cluster.from_inventory reads a file"),
        (lambda api: api.local(notfy=print), "notfy is no option of a cluster; did you mean notify?"),
        (lambda api: api.local(notify="loud"), "notify: 'loud' cannot be called"),
        (lambda api: api.local(accept_new_host_keys="yes"), "accept_new_host_keys: 'yes' is neither True nor False"),
        (lambda api: api.local(project="/no/such"), "project: /no/such: there is no such folder"),
        (lambda api: api.local(project=7), "project: 7 is no path"),
        (lambda api: api.from_inventory("i.yaml", limit=3), "limit: 3 is no text"),
        (lambda api: api.local().doctor(only=3), "only: 3 is no list of texts"),
        (lambda api: api.local().doctor(only="gpus, shmm"), "only: 'shmm' is no check"),
        (lambda api: api.local().doctor(bench="yes"), "bench: 'yes' is neither True nor False"),
        (lambda api: api.local().up(skip="shmm"), "skip: 'shmm' is no check"),
        (lambda api: api.local().up(fresh=1), "fresh: 1 is neither True nor False"),
        (lambda api: api.local().exec("id", timeout="soon"), "timeout: 'soon' is no duration"),
        (lambda api: api.local().exec("id", timeot=1), "timeot is no option of exec; did you mean timeout?"),
        (lambda api: api.local().exec("id", 3), "3 is no text"),
        (lambda api: api.local().down(grace="soon"), "grace: 'soon' is no duration"),
    ],
)
def test_a_wrong_option_of_any_call_is_refused_by_name_before_a_host_is_reached(
    call: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        call(Cluster)
    assert str(caught.value).startswith(said)


def test_a_project_may_be_named_by_a_folder_of_it(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "deep").mkdir()
    found = [Cluster.local(project=given).project for given in (tmp_path / "deep", str(tmp_path), find(tmp_path))]
    assert [one.root for one in found] == [tmp_path.resolve()] * 3


def test_a_wrong_name_is_refused_before_any_host_is_reached() -> None:
    with Cluster(built_in()) as cluster:
        with pytest.raises(UsageError, match="time_limt is no option of a run; did you mean time_limit"):
            cluster.run("train.py", time_limt="5m")  # type: ignore[call-arg]
        with pytest.raises(UsageError, match="nnodes: '0' is no number of nodes"):
            cluster.run("train.py", nnodes=0)
    assert run_options("train.py", ["x"], {"nnodes": "2:3"}).size == "2:3"
