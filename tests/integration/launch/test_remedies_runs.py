"""What messages of runs and of syncs tell a user to type is typed as it was printed, on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.remote.probes.reachability import bind_range
from clusterddp.remote.system.bootstrap import Refused
from clusterddp.remote.system.interpreter import find_interpreter
from tests.integration.cli import WAIT, User, used_before
from tests.lean import lean_python, training_python
from tests.remedies import Remedy, remedy, type_line
from tests.with_torch import need_torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRAIN = "print('trained', flush=True)\n"
WAITS = WAIT + "print('waits', flush=True)\nwait_for(sys.argv[1])\n"
CKPT = "my ckpt/last step.pt"


def write_inventory(user: User, *hosts: str, name: str = "inventory.yaml", **variables: Any) -> None:
    """Hosts that are this machine, and variables of all."""
    told = {"ansible_connection": "local", "clusterddp_python": lean_python(), **variables}
    listed = "\n".join(f"    {host}: {{}}" for host in hosts)
    settings = "\n".join(f"    {name}: {value}" for name, value in told.items())
    user.write(name, f"all:\n  vars:\n{settings}\n  hosts:\n{listed}\n")


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    """Somebody with one host."""
    made = used_before(User(tmp_path))
    made.env["CLUSTERDDP_INVENTORY"] = str(made.folder / "inventory.yaml")
    made.write("train.py", TRAIN)
    made.write("waits.py", WAITS)
    made.write("exps/none", "")
    write_inventory(made, "here")
    yield made
    made.run("stop", "--all")


def typed(user: User, line: str, **variables: str) -> str:
    """Type a line, which must work; what it said."""
    done = type_line(user, line, **variables)
    assert done.code == 0, (line, done.err)
    return done.out + done.err


def without_folder(said: str) -> str:
    """What was said, as it is without -C."""
    return re.sub(r"`(clusterddp|git) -C \S+ ", r"`\1 ", said)


def commands(told: Remedy, said: str) -> list[str]:
    """The commands that a remedy told, with the folder of -C if there is one."""
    plain = told.commands(without_folder(said))
    return [one for one in re.findall("`([^`]+)`", said) if without_folder(f"`{one}`")[1:-1] in plain]


def refused(user: User, line: str, told: Remedy, *, code: int = 125) -> str:
    """Type a line that is answered by a remedy; what it said."""
    done = type_line(user, line)
    assert (done.code, bool(told.found(without_folder(done.err)))) == (code, True), done.err
    return done.err


def workdir_of(user: User) -> Path:
    """The folder on the host."""
    (found,) = (user.home / "clusterddp").iterdir()
    return found


WAYS = remedy(
    "sync/result.py",
    "`clusterddp push --overwrite {}` takes the project's,"
    " `clusterddp pull --overwrite --host {} {} {}` that of {}; for all of them: ",
)
UNTRACK = remedy(
    "sync/result.py",
    "{}; as long as git tracks it each sync puts the project's there: `git rm --cached {}` ends that",
)
TAKE = remedy("sync/result.py", "{}--take project, or --take host")


@pytest.mark.parametrize(
    ("there", "way", "text"),
    [
        ("cd exps && clusterddp", "push", "project"),
        ("cd exps && clusterddp", "pull", "host"),
        ("cd exps && clusterddp -C ..", "pull", "host"),
        ("clusterddp -C exps", "push", "project"),
        ("clusterddp", "pull", "host"),
        ("clusterddp", "--take project", "project"),
        ("clusterddp", "--take host", "host"),
    ],
)
def test_what_is_told_of_a_file_that_both_sides_changed_decides_for_one_of_them(
    user: User, there: str, way: str, text: str
) -> None:
    user.write(CKPT, "first")
    typed(user, "clusterddp sync")
    (workdir_of(user) / CKPT).write_text("host")
    user.write(CKPT, "project")
    said = refused(user, f"{there} sync", WAYS, code=1)
    assert TAKE.found(said)
    push, pull = commands(WAYS, said)
    line = {"push": push, "pull": pull}.get(way, f"clusterddp sync {way}")
    typed(user, f"cd exps && {line}" if there.startswith("cd") else line)
    typed(user, "clusterddp sync")
    assert (workdir_of(user) / CKPT).read_text() == text
    assert (user.folder / CKPT).read_text() == ("project" if way == "--take host" else text)


@pytest.mark.parametrize("there", ["cd exps && clusterddp", "cd exps && clusterddp -C ..", "clusterddp -C exps"])
def test_a_tracked_file_that_a_run_rewrites_is_the_hosts_once_the_told_command_is_typed(user: User, there: str) -> None:
    user.write(CKPT, "first")
    typed(user, "git init -q && git add -A && clusterddp sync")
    (workdir_of(user) / CKPT).write_text("host")
    said = typed(user, f"{there} sync")
    (line,) = commands(UNTRACK, said)
    typed(user, f"cd exps && {line}" if there.startswith("cd") else line)
    typed(user, "clusterddp sync")
    (workdir_of(user) / CKPT).write_text("host again")
    typed(user, "clusterddp sync")
    assert (workdir_of(user) / CKPT).read_text() == "host again"


PUSH = remedy(
    "sync/project_files/ignored.py",
    "bring what the job needs of it with `clusterddp push PATH`, or take it out of .gitignore",
)


@pytest.mark.parametrize("way", ["clusterddp push data", "rm .gitignore && clusterddp sync"])
def test_data_that_git_ignores_comes_to_the_host_by_what_is_told(user: User, way: str) -> None:
    user.write("data/set.bin", "x" * 2_000_000)
    user.write(".gitignore", "data/\n")
    assert PUSH.found(typed(user, "git init -q && clusterddp sync"))
    assert not (workdir_of(user) / "data").exists()
    typed(user, way)
    assert (workdir_of(user) / "data/set.bin").stat().st_size == 2_000_000


NO_RUN = remedy("api/copy.py", "`clusterddp runs --all` lists them; the beginning of an id is not enough here")
A_RUN_AND_A_PATH = remedy("api/copy.py", "write ./{}, or --run {}")
OTHER_HOST = remedy("launch/ssh/origins.py", "see `clusterddp status`")
FROM_HERE = remedy("launch/repeat.py", "`clusterddp runs` lists the project's; one is repeated where it was started")
NO_LINES = remedy("logs/resume.py", "--after {}: line {} is none of `logs --json`")
BRING_BACK = remedy("launch/repeat.py", "bring that back, or start the script without --again")
CHECKOUT = remedy("launch/repeat.py", "`git checkout {}` has it")


def test_what_is_told_of_runs_that_are_not_found_finds_them(user: User) -> None:
    write_inventory(user, "here", "there")
    user.write("out/train", "")
    user.write("train.py", "open('out/result', 'w').write('new')\n")
    typed(user, "clusterddp run --limit here --name out train.py")
    run = user.run("runs", "--json").json[-1]["run"]
    said = refused(user, f"clusterddp pull --run {run[:4]}", NO_RUN, code=1)
    assert run in typed(user, NO_RUN.commands(said)[0])
    assert "here" in typed(user, f"clusterddp pull --run {run} mine")
    said = refused(user, f"clusterddp pull --run {run} --host there", OTHER_HOST, code=1)
    assert "here" in typed(user, OTHER_HOST.commands(said)[0])
    said = refused(user, "clusterddp pull --host here out other/", A_RUN_AND_A_PATH, code=2)
    path, name = A_RUN_AND_A_PATH.printed(said)
    typed(user, f"clusterddp pull --host here ./{path} by-path/")
    typed(user, f"clusterddp pull --run {name} by-run/")
    assert (user.folder / "by-path/out/train").exists()
    assert not (user.folder / "by-run/out/out/train").exists()
    said = refused(user, "clusterddp run --again nope", FROM_HERE)
    assert run in typed(user, FROM_HERE.commands(said)[0])
    typed(user, f"clusterddp run --limit here --again {run}")


def test_lines_that_are_none_are_named_with_what_writes_them(user: User) -> None:
    typed(user, "clusterddp run train.py")
    said = refused(user, "clusterddp logs --json --after train.py", NO_LINES, code=2)
    (command,) = re.findall(r"`(logs --json)`", said)
    typed(user, f"clusterddp {command} >lines.json")
    assert "trained" not in typed(user, "clusterddp logs --after lines.json")


def test_a_run_is_repeated_once_what_differs_is_brought_back(user: User) -> None:
    typed(user, "clusterddp run --name one train.py")
    write_inventory(user, "here", clusterddp_nproc=2)
    said = refused(user, "clusterddp run --again one", BRING_BACK)
    assert "ranks was 1, is 2" in said
    typed(user, "clusterddp run train.py")
    write_inventory(user, "here")
    typed(user, "clusterddp run --again one")


def test_the_commit_that_is_told_has_the_code_of_the_run(user: User) -> None:
    git = "git -c user.name=u -c user.email=u@example.org"
    typed(user, f"git init -q && echo .clusterddp >.gitignore && git add -A && {git} commit -qm one")
    typed(user, "clusterddp run --name one train.py")
    user.write("train.py", TRAIN + "# more\n")
    typed(user, f"{git} commit -qam two && rm -r .clusterddp/objects")
    said = refused(user, "cd exps && clusterddp -C .. run --again one", CHECKOUT)
    typed(user, f"cd exps && {commands(CHECKOUT, said)[0]}")
    typed(user, "clusterddp run --again one")


NO_FOLDER = remedy("remote/supervisor/start.py", "run again without --no-sync")
FIXED = remedy("launch/ssh/join.py", "start it with --nnodes MIN:MAX")
FULL = remedy("launch/ssh/join.py", "choose fewer by --limit")
SHARED = remedy(
    "remote/workdir/workdir.py",
    "run %s is live in %s too: both write there; --workdir fresh gives a run a folder of its own",
)
LIVE = remedy("runs/holdings.py", "`clusterddp stop {}` ends it")
WHY = remedy("runs/watch.py", "`clusterddp why {}` says what they wait for")
ALL = remedy("runs/failure_lines.py", "`clusterddp logs {} --rank {} --stream err` shows all")
NO_WARM = remedy("launch/preload.py", "leave clusterddp_fork_server: false out there")
PORTS = remedy("remote/system/ports.py", "free one, or set clusterddp_ports to another range")
RANGE = remedy("remote/probes/reachability.py", "free one, or set clusterddp_ports to another range")
OWN_WORKDIR = remedy("remote/workdir/workdir.py", "set clusterddp_workdir to a folder of its own")
SHORTER = remedy("remote/system/bootstrap.py", "set clusterddp_state to a shorter path")
STICKY = remedy("remote/system/bootstrap.py", "`chmod +t %s`, or %s")
OWN_STATE = remedy("remote/system/bootstrap.py", "set clusterddp_state to a folder of your own")


def test_a_subfolder_that_is_not_on_the_host_comes_without_no_sync(user: User) -> None:
    typed(user, "clusterddp sync")
    user.write("new/train.py", TRAIN)
    refused(user, "cd new && clusterddp run --no-sync train.py", NO_FOLDER)
    assert "trained" in typed(user, "cd new && clusterddp run train.py")


def test_what_is_told_beside_a_live_run_is_typed_and_holds(user: User) -> None:
    write_inventory(user, "here", "there", "third")
    go = user.home / "go on"
    with user.start("run", "--limit", "here", "--silence", "0.3s", "waits.py", str(go)) as live:
        live.wait_for("waits")
        live.wait_for("no rank has printed", stream="err")
        (line,) = WHY.commands(live.text("err"))
        assert "waits.py" in typed(user, line)
        refused(user, f"clusterddp run --join {live.run}", FIXED)
        shared = typed(user, "clusterddp run --limit here train.py")
        assert live.run in SHARED.printed(shared)[0]
        assert "is live in" not in typed(user, "clusterddp run --limit here --workdir fresh train.py")
        said = refused(user, "clusterddp down --everything --yes", LIVE, code=1)
        typed(user, LIVE.commands(said)[0])
        assert live.end().code != 0
    typed(user, "clusterddp down --everything --yes")


def test_an_elastic_run_takes_as_many_hosts_as_it_has_room_for(user: User) -> None:
    need_torch()
    write_inventory(user, "here", "there", "third")
    go = user.home / "go on"
    with user.start("run", "--limit", "here", "--nnodes", "1:2", "--max-restarts", "2", "waits.py", str(go)) as live:
        live.wait_for("waits")
        refused(user, f"clusterddp run --join {live.run}", FULL)
        assert "there joins" in typed(user, f"clusterddp run --limit here,there --join {live.run}")
        go.touch()
        done = live.end()
        assert done.code == 0, done.err


def test_the_whole_of_a_shortened_traceback_is_shown(user: User) -> None:
    calls = "".join(f"def f{number}():\n    f{number + 1}()\n" for number in range(40))
    user.write("fails.py", f"{calls}def f40():\n    raise ValueError('deep')\nf0()\n")
    done = user.run("run", "fails.py")
    assert done.code == 1
    assert "in f20" not in done.err
    (line,) = ALL.commands(done.err)
    assert "in f20" in typed(user, line)


def test_a_host_gets_a_warm_server_once_the_line_that_forbids_it_is_left_out(user: User) -> None:
    write_inventory(user, "here", clusterddp_fork_server="false")
    refused(user, "clusterddp up --warm 1m inventory.yaml", NO_WARM, code=2)
    write_inventory(user, "here")
    assert "warm server imports torch" in typed(user, "clusterddp up --warm 1m inventory.yaml")
    typed(user, "clusterddp down --yes")


def two_ports(after: int = 21000) -> int:
    """The first of two free ports that follow each other, below those that the system gives to connections."""
    for first in range(after + 2, 23000, 2):
        with contextlib.suppress(OSError), socket.create_server(("", first)), socket.create_server(("", first + 1)):
            return first
    raise AssertionError("no two ports are free")


@pytest.mark.parametrize("free", [True, False])
def test_a_run_begins_once_a_port_is_free_or_another_range_is_set(user: User, *, free: bool) -> None:
    first = two_ports()
    other = two_ports(first)
    with socket.create_server(("", first)) as taken:
        with pytest.raises(Refused) as caught:
            bind_range(first, first)
        assert caught.value.remedy == RANGE.text
        write_inventory(user, "here", clusterddp_ports=f"{first}-{first + 1}")
        assert "2 are needed" in refused(user, "clusterddp run train.py", PORTS)
        if free:
            taken.close()
            bind_range(first, first).close()
        else:
            bind_range(other, other + 1).close()
            write_inventory(user, "here", clusterddp_ports=f"{other}-{other + 1}")
        typed(user, "clusterddp run train.py")


def test_a_folder_that_cannot_be_used_is_replaced_by_another(user: User) -> None:
    for wrong, told, right in (
        ({"clusterddp_workdir": "~/none"}, OWN_WORKDIR, {"clusterddp_workdir": "~/own"}),
        ({"clusterddp_workdir": user.home}, OWN_WORKDIR, {"clusterddp_workdir": "~/own"}),
        ({"clusterddp_state": "~/" + "a" * 200 + ("/" + "b" * 200) * 5}, SHORTER, {"clusterddp_state": "~/state"}),
    ):
        (user.home / "none").touch()
        write_inventory(user, "here", **wrong)
        refused(user, "clusterddp run train.py", told)
        write_inventory(user, "here", **right)
        typed(user, "clusterddp run train.py")


def test_a_state_folder_where_others_could_put_their_own_is_closed_or_replaced(user: User) -> None:
    group = user.home / "my group"
    (group / "deep").mkdir(parents=True, mode=0o700)
    group.chmod(0o777)
    write_inventory(user, "here", clusterddp_state=group / "deep")
    said = refused(user, "clusterddp run train.py", STICKY)
    assert OWN_STATE.found(said)
    write_inventory(user, "here", clusterddp_state=user.home / "own")
    typed(user, "clusterddp run train.py")
    write_inventory(user, "here", clusterddp_state=group / "deep")
    typed(user, STICKY.commands(said)[0])
    typed(user, "clusterddp run train.py")


MODULE = remedy(
    "runs/view/known_messages/jobs.py",
    "install it there on every host, or correct clusterddp_python or clusterddp_setup; if yours, sync it",
)
CARD = remedy(
    "runs/view/known_messages/jobs.py",
    "unset it, and a run sets it to the right card; or name one that is there (`ip -br addr` lists them)",
)
REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("reduced", flush=True)
"""


def test_a_module_that_is_missing_comes_with_a_setup_line_or_with_a_sync(user: User) -> None:
    user.write("needs.py", "import helpful\nprint('trained', flush=True)\n")
    refused(user, "clusterddp run needs.py", MODULE, code=1)
    (user.home / "lib").mkdir()
    (user.home / "lib/helpful.py").touch()
    write_inventory(user, "here", clusterddp_setup=f"export PYTHONPATH='{user.home}/lib'")
    assert "trained" in typed(user, "clusterddp run needs.py")
    write_inventory(user, "here")
    user.write("helpful.py", "")
    refused(user, "clusterddp run --no-sync needs.py", MODULE, code=1)
    assert "trained" in typed(user, "clusterddp run needs.py")


def test_a_job_whose_network_card_is_not_there_begins_once_it_is_unset_or_the_right_one(user: User) -> None:
    need_torch()
    write_inventory(user, "here", clusterddp_python=training_python())
    user.write("reduce.py", REDUCE)
    wrong = "--env GLOO_SOCKET_IFNAME=ib9"
    refused(user, f"clusterddp run {wrong} reduce.py", CARD, code=1)
    assert "reduced" in typed(user, "clusterddp run reduce.py")
    write_inventory(user, "here", clusterddp_python=training_python(), clusterddp_interface="lo")
    assert "reduced" in typed(user, "clusterddp run reduce.py")
    assert "reduced" in typed(user, "clusterddp run --env GLOO_SOCKET_IFNAME=lo reduce.py")


PYTHON = remedy(
    "remote/system/interpreter.py",
    "set clusterddp_python to the interpreter that has torch, or clusterddp_setup to bring it",
)


def test_an_interpreter_is_found_once_it_is_named_or_on_the_path(tmp_path: Path) -> None:
    bare = {"PATH": str(tmp_path)}
    for wanted, env in ((None, bare), ("nope", {**os.environ}), (str(tmp_path / "none"), bare)):
        with pytest.raises(Refused) as caught:
            find_interpreter(wanted, env, None)
        assert caught.value.remedy == PYTHON.text
    assert find_interpreter(lean_python(), bare, None).python == lean_python()
    (tmp_path / "python").symlink_to(sys.executable)
    assert find_interpreter(None, bare, None).version == sys.version.split()[0]
