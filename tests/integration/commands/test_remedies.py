"""What messages tell a user to type is typed as it was printed, and does what they promise; no hosts are needed."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from clusterddp.errors import UsageError
from clusterddp.launch.options import run_options
from tests.integration.cli import WAIT, User, used_before
from tests.integration.complaint import one_line
from tests.lean import lean_python
from tests.remedies import Remedy, remedy, type_line

if TYPE_CHECKING:
    from collections.abc import Mapping

TRAIN = "import os\nprint('trained', os.environ.get('NOPE'), flush=True)\n"
STALLS = "all: {{hosts: {{a: {{ansible_connection: local, {}}}, b: {{ansible_connection: local}}}}}}\n"
ONE_HOST = "all:\n  hosts:\n    {}:\n      {}\n"


@pytest.fixture
def user(tmp_path: Path) -> User:
    """Somebody without an inventory, whose Python has torchrun."""
    made = used_before(User(tmp_path))
    made.write("train.py", TRAIN)
    made.env["CLUSTERDDP_PYTHON"] = lean_python()
    return made


@dataclass(frozen=True, kw_only=True)
class Case:
    """A line that is answered by a remedy, and the one that is typed then.

    Attributes:
        told: The remedy.
        first: The line that is wrong.
        then: What is typed then; empty: the commands that the remedy tells, one after the other.
        files: What the project has beside train.py.
        prints: Stands in what comes out then.
        again: What works then.
    """

    told: Remedy
    first: str
    then: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    prints: str = ""
    again: str = ""


CASES = [
    Case(
        told=remedy("cli/misplaced_options.py", "write `{}`; or, if the script is to have it, `{}`"),
        first="clusterddp run train.py --dry-run",
    ),
    Case(
        told=remedy("cli/misplaced_options.py", "write `{}`; or, if the script is to have it, `{}`"),
        first="cd .. && clusterddp -C 'my project' run train.py --dry-run",
        then="",
    ),
    Case(told=remedy("cli/actions/exec_action.py", "write `{}`"), first="clusterddp exec 'echo a | cat'", prints="a"),
    Case(
        told=remedy(
            "cli/actions/init_action.py",
            "give host names, a host file, or an ssh_config: `clusterddp init gpu01,gpu02`",
        ),
        first="clusterddp init",
    ),
    Case(
        told=remedy("cli/actions/init_action.py", "name another: --output FILE"),
        first="clusterddp init a,b && clusterddp init c,d",
        then="clusterddp init c,d --output other.yaml",
    ),
    Case(
        told=remedy("cli/option_checks.py", "write --env {}=VALUE"),
        first="clusterddp run --env NOPE train.py",
        then="clusterddp run --env NOPE=VALUE train.py",
        prints="trained VALUE",
    ),
    Case(
        told=remedy("inventory/origins.py", "give host names: `clusterddp init gpu01,gpu02`"),
        first="touch empty.txt && clusterddp init empty.txt",
    ),
    Case(
        told=remedy("inventory/ranges.py", "write name:port or [IPv6]:port, or set ansible_port"),
        first="clusterddp hosts -i i.yaml",
        files={"i.yaml": "all: {hosts: {'a:b': {}}}\n", "mended.yaml": "all: {hosts: {'a:22': {}, '[::1]:22': {}}}\n"},
        then="clusterddp hosts -i mended.yaml",
    ),
    Case(
        told=remedy(
            "inventory/variables/variable_readers.py",
            "give the interpreter's path alone; what must run before it belongs in clusterddp_setup",
        ),
        first="clusterddp hosts -i i.yaml",
        files={
            "i.yaml": ONE_HOST.format("a", "clusterddp_python: env python"),
            "mended.yaml": "all: {hosts: {a: {clusterddp_python: /usr/bin/python3, clusterddp_setup: 'true'}}}\n",
        },
        then="clusterddp hosts -i mended.yaml",
    ),
    Case(
        told=remedy("cli/inventory_choice.py", "if you trust it: `{}`"),
        first="clusterddp hosts",
        files={
            "pyproject.toml": '[tool.clusterddp]\ninventory = "my hosts.yaml"\n',
            "my hosts.yaml": "all: {hosts: {a: {ansible_connection: local}}}\n",
        },
        then="{told} --skip torch",
        again="clusterddp hosts",
    ),
    Case(
        told=remedy("launch/options/__init__.py", "give one number, or no --rdzv-backend"),
        first="clusterddp run --dry-run --rdzv-backend static --nnodes 1:2 train.py",
        then="clusterddp run --dry-run --rdzv-backend static --nnodes 2 train.py"
        " && clusterddp run --dry-run --nnodes 1:2 train.py",
    ),
    Case(
        told=remedy("launch/options/__init__.py", "leave out --rdzv-backend, or take --relaunch"),
        first="clusterddp run --dry-run --rdzv-backend static --max-restarts 2 train.py",
        then="clusterddp run --dry-run --max-restarts 2 train.py"
        " && clusterddp run --dry-run --rdzv-backend static --relaunch 2 train.py",
    ),
    Case(
        told=remedy("launch/options/__init__.py", "give --max-restarts N too, or --on-stall stop"),
        first="clusterddp run --dry-run --stall 10m --on-stall restart train.py",
        then="clusterddp run --dry-run --stall 10m --on-stall restart --max-restarts 1 train.py",
    ),
    Case(
        told=remedy("launch/stall_limit.py", "give --stall D too, such as --stall 10m, or set clusterddp_stall"),
        first="clusterddp run --dry-run --on-stall stop train.py",
        then="clusterddp run --dry-run --on-stall stop --stall 10m train.py",
    ),
    Case(
        told=remedy("launch/stall_limit.py", "set it for all, below `vars:`, or give --stall D"),
        first="clusterddp run -i i.yaml --dry-run train.py",
        files={"i.yaml": STALLS.format("clusterddp_stall: 10m")},
        then="clusterddp run -i i.yaml --dry-run --stall 10m train.py",
    ),
    Case(
        told=remedy("launch/stall_limit.py", "remove that, or give --stall 0"),
        first="clusterddp run -i i.yaml --dry-run --stall 10m train.py",
        files={"i.yaml": STALLS.format("clusterddp_comm_trace: false")},
        then="clusterddp run -i i.yaml --dry-run --stall 0 train.py",
    ),
    Case(
        told=remedy("shell/command.py", "write it after --, or as text by --shell"),
        first="clusterddp exec",
        then="clusterddp exec -- echo a && clusterddp exec --shell 'echo a'",
        prints="a",
    ),
    Case(
        told=remedy("cli/actions/exec_action.py", "--gather with --json: each line of JSON names its host already"),
        first="clusterddp exec --gather --json -- true",
        then="clusterddp exec --gather -- true && clusterddp exec --json -- true",
    ),
    Case(
        told=remedy("cli/actions/down_action.py", "give --yes"), first="clusterddp down", then="clusterddp down --yes"
    ),
    Case(
        told=remedy("cli/actions/doctor_action.py", "{} belongs behind --fix"),
        first="clusterddp doctor --only disk --yes",
        then="clusterddp doctor --only disk --fix --yes",
    ),
    Case(
        told=remedy("cli/main.py", "`clusterddp runs` lists runs, `clusterddp hosts` lists hosts"),
        first="clusterddp list",
    ),
    Case(
        told=remedy("cli/main.py", "{}{} see {} --help"), first="clusterddp run --lmit x", then="clusterddp run --help"
    ),
    Case(
        told=remedy("cli/main.py", "no command given; one of {}; see clusterddp --help"),
        first="clusterddp",
        then="clusterddp --help",
    ),
    Case(
        told=remedy("cli/pyproject.py", "give it on the line of `run`"),
        first="clusterddp run --dry-run train.py",
        files={"pyproject.toml": '[tool.clusterddp]\ngpus = "free"\n'},
        then="rm pyproject.toml && clusterddp run --dry-run --gpus all train.py",
    ),
    Case(
        told=remedy("cli/project_options.py", "give it on the line: --limit @FILE"),
        first="clusterddp hosts",
        files={"pyproject.toml": '[tool.clusterddp]\nlimit = "@hosts.txt"\n', "hosts.txt": "local0\n"},
        then="rm pyproject.toml && clusterddp hosts --limit @hosts.txt",
        prints="local0",
    ),
    Case(
        told=remedy("inventory/validate.py", "put the user into ansible_user and the port into ansible_port"),
        first="clusterddp hosts -i i.yaml",
        files={
            "i.yaml": ONE_HOST.format("a", "ansible_host: me@b"),
            "mended.yaml": ONE_HOST.format("a", "{ansible_host: b, ansible_user: me, ansible_port: 2222}").replace(
                "\n      {", " {"
            ),
        },
        then="clusterddp hosts -i mended.yaml",
    ),
    Case(
        told=remedy(
            "inventory/load.py",
            "`clusterddp up {}` does so once; or convert it: `ansible-inventory -i {} --list --yaml --output {}`",
        ),
        first="clusterddp hosts -i 'my hosts.ini'",
        files={"my hosts.ini": "[gpu]\ngpu01 ansible_user=alice\n"},
        then="ansible-inventory -i 'my hosts.ini' --list --yaml --output 'my hosts.yaml'"
        " && clusterddp hosts -i 'my hosts.yaml'",
        prints="alice",
    ),
    Case(
        told=remedy(
            "inventory/variables/variable_readers.py", "give hosts that are reached otherwise 'clusterddp_role: none'"
        ),
        first="clusterddp hosts -i i.yaml",
        files={
            "i.yaml": ONE_HOST.format("a", "ansible_connection: docker"),
            "mended.yaml": "all: {hosts: {a: {ansible_connection: docker, clusterddp_role: none}, b: {}}}\n",
        },
        then="clusterddp hosts -i mended.yaml",
    ),
    Case(
        told=remedy("launch/answering.py", "give one clusterddp_role: node"),
        first="clusterddp run --dry-run -i i.yaml train.py",
        files={
            "i.yaml": ONE_HOST.format("a", "clusterddp_role: none"),
            "mended.yaml": "all: {hosts: {a: {clusterddp_role: node, ansible_connection: local}}}\n",
        },
        then="clusterddp run --dry-run -i mended.yaml train.py",
    ),
    Case(
        told=remedy("launch/launcher.py", "choose one with --launcher"),
        first="clusterddp run --dry-run -i i.yaml train.py",
        files={
            "i.yaml": "all:\n  vars: {ansible_connection: local}\n  hosts:\n"
            "    a: {clusterddp_launcher: ssh}\n    b: {clusterddp_launcher: slurm}\n"
        },
        then="clusterddp run --dry-run -i i.yaml --launcher ssh train.py",
    ),
    Case(
        told=remedy("launch/ssh/over_ssh.py", "leave it out, or give --launcher slurm"),
        first="clusterddp run --dry-run --array 0-3 train.py",
        then="clusterddp run --dry-run train.py",
    ),
    Case(
        told=remedy("project/project_folder.py", "`chmod go-w {}`, if what is in it is yours"),
        first="mkdir -m 777 .clusterddp && clusterddp run --dry-run train.py",
        again="clusterddp run --dry-run train.py",
    ),
    Case(
        told=remedy("project/consent.py", "`chmod go= {}`"),
        first='mkdir -p "$XDG_STATE_HOME/clusterddp" && chmod 755 "$XDG_STATE_HOME/clusterddp"; '
        "echo 'all: {hosts: {a: {ansible_connection: local}}}' >i.yaml; clusterddp up i.yaml",
        again="clusterddp up --skip torch i.yaml",
    ),
    Case(
        told=remedy(
            "inventory/local_python.py",
            "the project's .venv is not active, so it is not used; `source .venv/bin/activate` there changes that",
        ),
        first="{python} -m venv --without-pip .venv; echo {packages} >$(echo .venv/lib/py*/site-packages)/torch.pth;"
        " unset CLUSTERDDP_PYTHON; clusterddp run --dry-run train.py",
        then="source .venv/bin/activate; unset CLUSTERDDP_PYTHON; clusterddp run --dry-run train.py 2>&1",
        prints="(VIRTUAL_ENV)",
    ),
]
AFTER_RUNS = [
    Case(
        told=remedy("cli/actions/runs_action.py", "leave out --all, --last, --state and --name"),
        first="clusterddp runs --diff a b --all",
        then="clusterddp runs --diff a b",
        prints="a and b",
    ),
    Case(
        told=remedy("cli/actions/runs_action.py", "no run{} matches; {} without --state and --name"),
        first="clusterddp runs --state failed",
        then="clusterddp runs",
        prints="succeeded",
    ),
    Case(
        told=remedy("runs/choose.py", "`clusterddp runs --all` lists them"),
        first="clusterddp logs nope",
        prints="succeeded",
    ),
]
FEW_RUNS = remedy("runs/choose.py", "name one, or `clusterddp stop --all` ends all")
NO_SIGNAL = remedy("runs/signals.py", "use `clusterddp stop`")


def named(case: Case) -> str:
    return f"{case.told.path}: {case.told.text[:60]}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_what_a_message_tells_is_typed_and_holds(user: User, case: Case) -> None:
    if "ansible-" in case.then:
        pytest.importorskip("ansible", reason="ansible-inventory converts it")
    typed_and_holds(user, case)


def filled(line: str) -> str:
    """A line with an interpreter that has torch, and where its torch lies."""
    python = Path(lean_python())
    packages = next(python.parents[1].glob("lib/python*/site-packages"))
    return line.replace("{python}", str(python)).replace("{packages}", str(packages))


def typed_and_holds(user: User, case: Case) -> None:
    for name, text in case.files.items():
        user.write(name, text)
    env = {"XDG_STATE_HOME": str(user.home / "my state")}
    first = type_line(user, filled(case.first), **env)
    assert case.told.found(first.err), first.err
    where = "cd .. && " if case.first.startswith("cd .. ") else ""
    for line in [case.then] if case.then else case.told.commands(first.err):
        if "{told}" in line:
            line = line.replace("{told}", case.told.commands(first.err)[0])  # noqa: PLW2901 - as it was printed
        done = type_line(user, where + line, **env)
        assert done.code == 0, (line, done.err)
        assert case.prints in done.out + done.err
    if case.again:
        again = type_line(user, case.again, **env)
        assert again.code == 0, again.err


@pytest.fixture(scope="module")
def with_runs(tmp_path_factory: pytest.TempPathFactory) -> User:
    """Somebody with two runs that have ended."""
    user = User(tmp_path_factory.mktemp("user"))
    user.write("train.py", TRAIN)
    user.env["CLUSTERDDP_PYTHON"] = lean_python()
    for name in ("a", "b"):
        done = user.run("run", "--name", name, "train.py")
        assert done.code == 0, done.err
    return user


@pytest.mark.parametrize("case", AFTER_RUNS, ids=named)
def test_what_is_told_of_runs_is_typed_and_holds(with_runs: User, case: Case) -> None:
    typed_and_holds(with_runs, case)


def test_what_is_told_of_live_runs_is_typed_and_ends_them(user: User) -> None:
    user.write("wait.py", WAIT + "print('waits', flush=True)\nwait_for('/no/such/file')\n")
    try:
        first = user.run("run", "--detach", "--workdir", "one", "wait.py").out.strip()
        user.hear(first, "waits", times=2)
        said = user.run("signal", first, "TERM")
        assert NO_SIGNAL.commands(said.err) == ["clusterddp stop"]
        second = user.run("run", "--detach", "--workdir", "two", "wait.py").out.strip()
        user.hear(second, "waits", times=2)
        several = user.run("stop")
        (command,) = FEW_RUNS.commands(several.err)
        done = type_line(user, command)
        assert done.code == 0, done.err
        assert {user.status(run)["state"] for run in (first, second)} == {"stopped"}
    finally:
        user.run("stop", "--all")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("--lr 0.1", ("--lr", "0.1")), ("--name 'a b'", ("--name", "a b")), ("it's", ("it's",)), (5, ("5",))],
)
def test_arguments_given_as_one_text_are_told_as_the_list_they_mean(given: object, meant: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as error:
        run_options("train.py", given, {})  # type: ignore[arg-type]
    written = ast.literal_eval(error.value.remedy.removeprefix("write "))
    assert run_options("train.py", written, {}).args == meant


def test_only_an_up_that_has_succeeded_says_that_the_inventory_is_remembered(user: User) -> None:
    pytest.importorskip("ansible", reason="Ansible reads this kind of inventory")
    user.write("hosts.ini", "[gpu]\nno-such-host.invalid\n")
    done = user.run("up", "hosts.ini")
    assert (done.code, "remembered" in done.err) == (1, False), done.err
    assert "what it says stands in " in done.err
    one_line(user.run("run", "--limit", "gpu", "train.py"), 125)
