"""A run repeated: what its record gives back, and what refuses it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import RunError, UsageError
from clusterddp.inventory import HostEntry, Inventory
from clusterddp.launch import repeat as again
from clusterddp.launch.make_record import options_record
from clusterddp.launch.options import RunOptions
from clusterddp.remote.shared.run.run_record import RunRecord, read_run_record
from clusterddp.remote.shared.schema.record import to_fields
from clusterddp.sync import code_store
from clusterddp.sync.project_files.project_tree import scan
from tests.unit.sync_help import content, project_at, write

if TYPE_CHECKING:
    from pathlib import Path

    from clusterddp.project.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return project_at(tmp_path / "toy")


def record(options: RunOptions, /, **more: Any) -> RunRecord:
    """What a run with these options writes down, as it comes back from a file."""
    known = {
        "run": "abcdefghij", "hosts": ("gpu01", "gpu00"), "script": options.script, "argv": options.args,
        "module": options.module, "name": options.name, "limit": options.limit, "options": options_record(options),
    }  # fmt: skip
    return read_run_record(json.loads(json.dumps(to_fields(RunRecord(**{**known, **more})))))


def inventory(*names: str, **roles: Any) -> Inventory:
    hosts = tuple(HostEntry(name=name, address=name, role=roles.get(name, "node")) for name in names)
    return Inventory(path=None, hosts=hosts, groups={})


def test_all_options_come_back_from_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", "s")
    options = RunOptions(
        script="train.py", args=("--lr", "1"), name="night", nnodes=(2, 4), nproc_per_node=2, gpus="0,1",
        share_gpus=True, env={"A": "1", "EMPTY": ""}, secret=("SOURCE",), time_limit=60.0, relaunch=1, max_restarts=2,
        on_disconnect="stop", torchrun_arg=("--role=x",), grace=5.0, skip=("shm",), sync_limit=1000, log_limit=2000,
        launcher="ssh", limit="all", workdir="exp1", pass_local_rank=True, debug_comm=True, no_doctor=True,
    )  # fmt: skip
    back = again.options_of(record(options))
    assert back == RunOptions(**{**{name: getattr(options, name) for name in options.__slots__}, "again": "abcdefghij"})
    assert options_record(RunOptions(script="train.py")) == {}


@pytest.mark.parametrize(
    ("name", "shown", "again_named"), [("sweep", "sweep.3", "sweep"), (None, "abcdefghij.3", None)]
)
def test_of_an_array_one_run_is_repeated_alone(name: str | None, shown: str, again_named: str | None) -> None:
    options = RunOptions(script="train.py", name=name, array="0-7%2", launcher="slurm")
    back = again.options_of(record(options, name=shown, array="q1"))
    assert (back.name, back.array) == (again_named, "3-3")


def test_a_value_that_looks_like_a_secret_is_written_nowhere_and_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    told = record(RunOptions(script="train.py", env={"WANDB_API_KEY": "hunter2", "LR": "1"}))
    assert "hunter2" not in json.dumps(to_fields(told))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(UsageError, match=r"WANDB_API_KEY is not set .*; export WANDB_API_KEY first"):
        again.options_of(told)
    monkeypatch.setenv("WANDB_API_KEY", "new")
    assert again.options_of(told).env == {"WANDB_API_KEY": "new", "LR": "1"}


def test_a_secret_that_is_not_set_any_more_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "x")
    told = record(RunOptions(script="train.py", secret=("HF_TOKEN",)))
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UsageError, match=r"run abcdefghij: .*HF_TOKEN is not set .*; export HF_TOKEN first"):
        again.options_of(told)


def test_whoever_is_there_is_asked_for_secrets_that_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "x")
    told = record(RunOptions(script="train.py", secret=("HF_TOKEN",), env={"WANDB_API_KEY": "y", "LR": "1"}))
    monkeypatch.setenv("WANDB_API_KEY", "set")
    monkeypatch.delenv("HF_TOKEN")
    options = again.options_of(told, lambda prompt: f"typed at {prompt}")
    assert os.environ["HF_TOKEN"] == "typed at HF_TOKEN, as for run abcdefghij: "
    assert (options.secret, options.env) == (("HF_TOKEN",), {"WANDB_API_KEY": "set", "LR": "1"})


@pytest.mark.parametrize("options", [None, {"no_such_option": 1}])
def test_what_was_not_written_down_or_is_not_known_refuses(options: dict[str, Any] | None) -> None:
    with pytest.raises(RunError, match="run abcdefghij cannot be repeated: "):
        again.options_of(record(RunOptions(script="train.py"), options=options))


def test_the_hosts_are_those_it_had_in_their_order() -> None:
    told = record(RunOptions(script="train.py"), spares=["gpu09", "gpu08"])
    found = again.inventory_of(told, inventory("gpu00", "gpu01", "gpu02", "gpu08", gpu01="spare"))
    assert [(host.name, host.role) for host in found.hosts] == [
        ("gpu01", "node"), ("gpu00", "node"), ("gpu08", "spare"),
    ]  # fmt: skip
    with pytest.raises(RunError, match=r"no node of this inventory is gpu01; .*-i FILE"):
        again.inventory_of(told, inventory("gpu00", "gpu01", gpu01="none"))


def test_a_run_is_found_where_it_was_started_by_id_beginning_or_name(project: Project) -> None:
    for run, name in (("abcaaaaaaa", "x"), ("abcbbbbbbb", "x"), ("dddddddddd", None)):
        project.record_run(RunRecord(hosts=(), run=run, name=name))
    found = {word: again.find_record(project, word).run for word in ("x", "d", "abca", "abcbbbbbbb")}
    assert found == {"x": "abcbbbbbbb", "d": "dddddddddd", "abca": "abcaaaaaaa", "abcbbbbbbb": "abcbbbbbbb"}
    for word in ("abc", "nothing", ""):
        with pytest.raises(RunError):
            again.find_record(project, word)


def test_code_that_has_changed_since_is_as_it_was(project: Project) -> None:
    write(project.root, **{"train.py": "old", "pkg/a.py": "a"})
    tree = scan(project)
    code_store.keep(project, tree)
    write(project.root, **{"train.py": "new"})
    told = record(RunOptions(script="train.py"), code=tree.digest, subfolder="pkg")
    options = again.options_of(told)
    project.record_run(told)
    with again.resolve_repeat(inventory("gpu00", "gpu01"), project, options) as (hosts, place, repeat):
        assert repeat
        assert content(repeat.tree.root) == {"train.py": "old", "pkg/a.py": "a"}
        assert (repeat.tree.entries, repeat.tree.digest) == (tree.entries, tree.digest)
        assert ([host.name for host in hosts.nodes], place.subfolder) == (["gpu01", "gpu00"], "pkg")
    assert not list(project.folder.glob("again-*"))


def test_code_that_is_not_kept_refuses_unless_it_is_the_project_s_own(project: Project) -> None:
    write(project.root, **{"train.py": "old"})
    digest = scan(project).digest
    told = record(RunOptions(script="train.py"), code=digest, git={"commit": "0123456789abcdef", "dirty": False})
    project.record_run(told)
    with again.resolve_repeat(inventory("gpu00", "gpu01"), project, again.options_of(told)) as (_, _, repeat):
        assert repeat
        assert repeat.tree.root == project.root
    write(project.root, **{"train.py": "new"})
    asked = again.resolve_repeat(inventory("gpu00", "gpu01"), project, again.options_of(told))
    with (
        pytest.raises(RunError, match=r"code [0-9a-f]{6} is not kept .*; `git checkout 0123456789ab` has it"),
        asked,
    ):
        pass
    unknown = record(RunOptions(script="train.py"), run="bbbbbbbbbb", code="")
    project.record_run(unknown)
    asked = again.resolve_repeat(inventory("gpu00", "gpu01"), project, again.options_of(unknown))
    with pytest.raises(RunError, match="nobody knows its code"), asked:
        pass


def test_what_the_job_would_notice_refuses_and_a_driver_is_told(project: Project) -> None:
    options = RunOptions(script="train.py")
    then = record(options, versions={"torch": "2.3", "driver": "550", "clusterddp": "0.1"}, world_size=2)
    repeat = again.Repeat(record=then, tree=scan(project))
    now = then._replace(run="n", versions={"torch": "2.3", "driver": "560", "clusterddp": "0.2"})
    assert repeat.check(now) == ["since run abcdefghij: version of driver was 550, is 560"]
    changed = now._replace(versions={"torch": "2.4"}, variables={"LR": "2"}, world_size=4)
    with pytest.raises(RunError) as refused:
        repeat.check(changed)
    assert str(refused.value) == (
        "run abcdefghij cannot be repeated: ranks was 2, is 4; version of torch was 2.3, is 2.4;"
        " variable LR was none, is 2; bring that back, or start the script without --again"
    )
