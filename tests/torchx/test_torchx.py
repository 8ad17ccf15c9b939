"""torchx's own commands with our scheduler: on two nodes on this machine, and on two lab hosts.

CLUSTERDDP_TORCHX names the torchx (`make test-torchx` installs it); without it all of this is skipped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import LIMIT, WAIT
from tests.lab.system import wait_until
from tests.own_lab import own_lab
from tests.unit.torchx_plugins.test_mapping import App, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

TORCHX = os.environ.get("CLUSTERDDP_TORCHX", "")
if not TORCHX:
    pytest.skip("only in make test-torchx", allow_module_level=True)

PYTHON = Path(TORCHX).with_name("python")
PAGE = Path(__file__).parents[2] / "docs" / "torchx.md"
DEFAULT, BUILT_IN = "local_docker", ["local_docker", "local_cwd", "slurm", "kubernetes"]
SCRIPT = f"""{WAIT}
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
print(os.environ["TORCHX_JOB_ID"], file=sys.stderr, flush=True)
if sys.argv[1:2] == ["wait"]:
    wait_for("go")
sys.exit(3 if sys.argv[1:2] == ["fail"] and os.environ["RANK"] == "1" else 0)
"""


@dataclasses.dataclass(frozen=True)
class Person:
    """A user of torchx in a project of his own."""

    folder: Path
    env: dict[str, str]

    def torchx(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(TORCHX, *words)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, check=False, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=LIMIT
        )

    def start(self, *args: str, cfg: tuple[str, ...] = ()) -> str:
        done = self.torchx(
            "run", "-s", "clusterddp", *cfg, "dist.ddp", "-j", "2x1", "--script", "train.py", "--", *args
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, handle: str) -> str:
        done = self.torchx("status", handle)
        return next((line.split()[1] for line in done.stdout.splitlines() if "State:" in line), done.stderr)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return Person(folder, {**kept, "HOME": str(home), "CLUSTERDDP_PYTHON": sys.executable})


def last(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.torch
def test_a_run_is_started_shown_listed_and_read(person: Person) -> None:
    handle = person.start("--lr", "a b")
    wait_until("the run is SUCCEEDED", lambda: person.state(handle) == "SUCCEEDED", timeout=LIMIT)
    lines = person.torchx("log", handle).stdout
    assert "[0]:rank 0 of 2 ['--lr', 'a b']" in lines
    assert lines.count(handle) == 2
    err = person.torchx("log", "--streams", "stderr", f"{handle}/train/1").stdout
    assert "[1]:" in err
    assert "rank" not in err
    listed = person.torchx("list", "-s", "clusterddp").stdout
    assert handle in listed
    assert "SUCCEEDED" in listed


@pytest.mark.torch
def test_a_run_is_cancelled(person: Person) -> None:
    handle = person.start("wait")
    wait_until("the run is RUNNING", lambda: person.state(handle) == "RUNNING", timeout=LIMIT)
    assert "proved empty" in person.torchx("cancel", handle).stderr
    assert person.state(handle) == "CANCELLED"


@pytest.mark.torch
def test_a_run_is_found_where_it_was_started_once_up_has_remembered_other_hosts(person: Person, tmp_path: Path) -> None:
    handle = person.start("wait")
    wait_until("the run is RUNNING", lambda: person.state(handle) == "RUNNING", timeout=LIMIT)
    variables = {"ansible_connection": "local", "clusterddp_python": sys.executable}
    variables["clusterddp_state"] = str(tmp_path / "elsewhere")
    (person.folder / "hosts.yaml").write_text(json.dumps({"all": {"hosts": {"other": {}}, "vars": variables}}))
    done = person.run(str(PYTHON.with_name("clusterddp")), "up", "hosts.yaml")
    assert done.returncode == 0, done.stderr
    assert person.state(handle) == "RUNNING"
    assert "rank 1 of 2" in person.torchx("log", f"{handle}/train/1").stdout
    assert "proved empty" in person.torchx("cancel", handle).stderr


@pytest.mark.torch
def test_a_failed_run_says_its_verdict(person: Person) -> None:
    handle = person.start("fail")
    wait_until("the run is FAILED", lambda: person.state(handle) == "FAILED", timeout=LIMIT)
    assert "rank 1 (local1:0) failed first" in person.torchx("status", handle).stdout


def test_a_dry_run_prints_the_command_line_and_starts_nothing(person: Person) -> None:
    done = person.torchx("run", "-s", "clusterddp", "--dryrun", "dist.ddp", "-j", "1:2x3", "--script", "train.py")
    assert "clusterddp run --detach --nnodes 1:2 --nproc-per-node 3" in done.stdout
    assert not (person.folder / ".clusterddp").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("utils.echo", "--msg", "hi"), "only dist.ddp and dist.torchrun are run by clusterddp"),
        (("dist.ddp", "--script", "train.py", "--mounts", "type=bind,src=/a,dst=/b"), "mounts"),
        (("dist.ddp", "--script", "train.py", "--", "${img_root}"), "macro ${img_root}"),
    ],
)
def test_what_is_not_mapped_is_refused_in_one_line(person: Person, words: tuple[str, ...], said: str) -> None:
    done = person.torchx("run", "-s", "clusterddp", *words)
    assert done.returncode == 1
    assert last(done).startswith("clusterddp: ")
    assert said in last(done)
    assert "Traceback" not in done.stderr


@pytest.mark.torch
def test_a_replica_that_is_not_there_is_said(person: Person) -> None:
    done = person.torchx("log", f"{person.start()}/train/5")
    assert "replica 5: the run has 2 hosts" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_app_that_is_not_there_is_said(person: Person) -> None:
    done = person.torchx("status", "clusterddp://torchx/nosuch")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_an_inventory_that_only_the_folder_names_is_not_read(person: Person) -> None:
    (person.folder / ".torchxconfig").write_text("[clusterddp]\ninventory = hosts.yaml\n")
    done = person.torchx("run", "-s", "clusterddp", "--dryrun", "dist.ddp", "--script", "train.py")
    assert "without your consent" in last(done)


def test_an_inventory_of_the_users_own_torchxconfig_is_used(person: Person) -> None:
    home = Path(person.env["HOME"])
    words = ("run", "-s", "clusterddp", "--dryrun", "dist.ddp", "--script", "train.py")
    for file, own in {
        "mine": dataclasses.replace(person, env={**person.env, "TORCHXCONFIG": str(home / "mine")}),
        ".torchxconfig": dataclasses.replace(person, folder=home),
    }.items():
        (home / file).write_text("[clusterddp]\ninventory = hosts.yaml\n")
        done = own.torchx(*words)
        assert "-i hosts.yaml" in done.stdout, done.stderr


def test_the_default_and_the_built_in_schedulers_stay(person: Person) -> None:
    shown = person.torchx("run", "--help").stdout
    assert f"clusterddp,{','.join(BUILT_IN)}" in "".join(shown.split())
    code = (
        "import sys; sys.argv = ['torchx', 'run', 'utils.echo']; import torchx.cli.main; from torchx import schedulers"
    )
    default = person.run(str(PYTHON), "-c", f"{code}; print(schedulers.get_default_scheduler_name())")
    assert default.stdout.strip() == DEFAULT
    program = "from torchx.schedulers import *; print(get_default_scheduler_name(), *get_scheduler_factories())"
    assert person.run(str(PYTHON), "-c", program).stdout.split() == [DEFAULT, *BUILT_IN]


def test_a_program_gives_it_to_its_runner(person: Person) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    done = person.run(str(PYTHON), "-c", f"{program}\nprint(*runner.scheduler_backends())")
    assert done.stdout.split() == [*BUILT_IN, "clusterddp"]


def test_another_distributions_scheduler_stays_importable_and_first(person: Person) -> None:
    others = person.folder / "site" / "torchx_plugins" / "schedulers"
    others.mkdir(parents=True)
    (others / "zz.py").write_text("from torchx.plugins import register\n@register.scheduler()\ndef zz(*a, **k): ...\n")
    other = dataclasses.replace(person, env={**person.env, "PYTHONPATH": str(person.folder / "site")})
    assert f"zz,clusterddp,{','.join(BUILT_IN)}" in "".join(other.torchx("run", "--help").stdout.split())


def test_the_unit_tests_stand_ins_have_torchxs_fields(person: Person) -> None:
    code = (
        "from torchx.specs import AppDef, Role; print(*Role.__dataclass_fields__); print(*AppDef.__dataclass_fields__)"
    )
    role, app = person.run(str(PYTHON), "-c", code).stdout.splitlines()
    assert set(role.split()) == {one.name for one in dataclasses.fields(Role)} | {"resource", "port_map"}
    assert set(app.split()) - {"__iter__"} == {one.name for one in dataclasses.fields(App)}


@pytest.fixture(scope="module")
def inventory() -> Iterator[Path]:
    with own_lab(2) as lab:
        yield lab.inventory


@pytest.mark.lab
def test_the_same_on_hosts_over_ssh(person: Person, inventory: Path) -> None:
    handle = person.start("wait", cfg=("-cfg", f"inventory={inventory}"))
    wait_until("the run is RUNNING", lambda: person.state(handle) == "RUNNING", timeout=LIMIT)
    # Found without naming the inventory again.
    assert "rank 1 of 2" in person.torchx("log", f"{handle}/train/1").stdout
    assert handle in person.torchx("list", "-s", "clusterddp", "-cfg", f"inventory={inventory}").stdout
    assert "proved empty" in person.torchx("cancel", handle).stderr
    assert person.state(handle) == "CANCELLED"
