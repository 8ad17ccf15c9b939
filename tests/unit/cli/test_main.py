"""The command line's words: what each may be, and what is said when one is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from clusterddp.api.cluster import Cluster
from clusterddp.cli import option_checks
from clusterddp.cli.click_options import Duration, Moment, Number, Ranks, Size
from clusterddp.cli.main import main
from clusterddp.errors import HostError, HostsError, UsageError
from clusterddp.launch.options import RunOptions
from tests.unit.cli_help import folder, said

if TYPE_CHECKING:
    from pathlib import Path

    import click

__all__ = ["folder"]  # fixture

pytestmark = pytest.mark.usefixtures("folder")
HEAVY = (
    "paramiko",
    "fabric",
    "invoke",
    "rich",
    "yaml",
    "asyncio",
    "torch",
    "clusterddp.api.cluster",
    "clusterddp.project.project",
)
IMPORTED = f"""
import sys
from clusterddp.cli.main import main
try:
    main(["--help"])
finally:
    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


# (words after `run`, what the line begins with, what it holds)
WRONG_RUN = [
    ([], "Missing argument 'SCRIPT'", "run --help"),
    (["--bogus", "train.py"], "no such option --bogus", "--torchrun-arg"),
    (["--gpu", "0", "train.py"], "no such option --gpu", "did you mean --gpus?"),
    (["--nnode", "2", "train.py"], "no such option --nnode", "did you mean --nnodes? see"),
    (["-i", "none.yaml", "train.py", "--version", "-v"], "none.yaml: there is no such inventory", ""),  # its own
    (["-C", "nowhere", "train.py"], "-C nowhere: No such file or directory", "name the project's folder"),
    (["--monitor_interval", "1", "train.py"], "no such option --monitor-interval", "--torchrun-arg"),
    (["--rdzv_endpoint", "x", "train.py"], "--rdzv-endpoint is set by clusterddp itself", "leave it out"),
    (["--node-rank", "0", "train.py"], "--node-rank is set by clusterddp itself", "leave it out"),
    (["--master_addr=x", "train.py"], "--master-addr is set by clusterddp itself", "leave it out"),
    (["--standalone", "train.py"], "--standalone is set by clusterddp itself", "leave it out"),
    (["--nnodes", "0", "train.py"], "--nnodes: '0' is no number of nodes", "write 4, or 2:4"),
    (["--nnodes", "0:4", "train.py"], "--nnodes: '0:4' is no number of nodes", "write 4, or 2:4"),
    (["--nnodes", "2:", "train.py"], "--nnodes: '2:' is no number of nodes", "write 4, or 2:4"),
    (["--nnodes", "4:2", "train.py"], "--nnodes: '4:2': the least is more than the most", "write 2:4"),
    (["--nnodes", "\u0663", "train.py"], "--nnodes: ", "no number"),
    (["--nnodes", "2:3", "--rdzv-backend", "static", "train.py"], "--nnodes 2:3: a static rendezvous", "one number"),
    (["--max-restarts", "1", "--rdzv-backend", "static", "train.py"], "--max-restarts 1: under static", "--relaunch"),
    (["--nproc_per_node", "0", "train.py"], "--nproc-per-node: '0'", "neither auto nor a number of at least 1"),
    (["--nproc-per-node", "gpu", "train.py"], "--nproc-per-node: 'gpu'", "neither auto nor a number"),
    (["--gpus", "first", "train.py"], "--gpus: first", "use all, free, free:2 or 0,3"),
    (["--gpus", "free:0", "train.py"], "--gpus: free:0", "not a number of GPUs"),
    (["--env", "1A=2", "train.py"], "--env 1A=2: '1A' is no name of a variable", "letters"),
    (["--env", "=2", "train.py"], "--env =2: '' is no name of a variable", "letters"),
    (["--env", "NOT_SET_HERE", "train.py"], "--env NOT_SET_HERE: it is not set", "NOT_SET_HERE=VALUE"),
    (["--env", "RANK=0", "train.py"], "--env RANK=0: RANK is set by torchrun", "leave it out"),
    (["--secret", "NOT_SET_HERE", "train.py"], "--secret: NOT_SET_HERE is not set", "export NOT_SET_HERE first"),
    (["--secret", "A=hunter2", "train.py"], "--secret: takes a name alone", "export the value"),
    (["--env-file", "nothing", "train.py"], "--env-file nothing: No such file", "K=V lines"),
    (["--env-file", ".", "train.py"], "--env-file .: Is a directory", "K=V lines"),
    (["--time-limit", "9" * 400, "train.py"], "--time-limit: '999", "is no duration"),
    (["--max-restarts", "9" * 5000, "train.py"], "--max-restarts: '999", "is no number of at least 0"),
    (["--log-limit", "9" * 400, "train.py"], "--log-limit: '999", "is no size"),
    (["--time-limit", "5x", "train.py"], "--time-limit: '5x' is no duration", "5m"),
    (["--time-limit", "0", "train.py"], "--time-limit: '0' is no time at all", "write 5m, or leave it out"),
    (["--grace", "-1", "train.py"], "--grace: '-1' is no duration", "5m"),
    (["--max-restarts", "-1", "train.py"], "--max-restarts: '-1'", "at least 0"),
    (["--sync-limit", "lots", "train.py"], "--sync-limit: 'lots' is no size", "500MB"),
    (["--show", "1-", "train.py"], "--show: '1-' is no list of ranks", "0,2-5"),
    (["--name", " ", "train.py"], "--name: ' ' is no name", "letters"),
    (["--name", "a\nb", "train.py"], "--name: 'a\\nb' is no name", "letters"),
    (["--name", "..", "train.py"], "--name: '..' is no name", "letters"),
    (["--result", "nowhere/x.json", "train.py"], "--result: nowhere/x.json: there is no folder nowhere", "make it"),
    (["--result", ".", "train.py"], "--result: . is a folder", "name a file"),
    (["--torchrun-arg", "--nnodes=2", "train.py"], "--torchrun-arg: --nnodes=2: --nnodes is set by", "leave it out"),
    (["--torchrun-arg=--nnode=3", "train.py"], "--torchrun-arg: --nnode=3: --nnodes is set by", "leave it out"),
    (["--torchrun-arg=-r=3", "train.py"], "--torchrun-arg: -r=3: -r is set by", "leave it out"),
    (["--torchrun-arg=-r3", "train.py"], "--torchrun-arg: -r3: -r is set by", "leave it out"),
    (["--launcher", "pbs", "train.py"], "--launcher: 'pbs' is not one of", "slurm"),
    (["--detach", "--on-disconnect", "stop", "x.py"], "--detach with --on-disconnect stop", "no terminal to lose"),
    (["--detach", "--result", "x.json", "x.py"], "--result with --detach: nothing here", "leave one out"),
    (["--join", "r1", "train.py"], "SCRIPT beside --join: a run is joined as it is", "leave out one"),
    (["--join", "r1", "--dry-run"], "--dry-run beside --join", "leave out one"),
    (["--again", "r1", "--env", "A=1"], "--env beside --again: a run is repeated as it was", "leave out one"),
    (["-i", "none.yaml", "train.py"], "none.yaml: there is no such inventory file", "check the path"),
    (["--limit", "gpu99", "train.py"], "limit 'gpu99' selects no host", "local0"),
]


@pytest.mark.parametrize(("argv", "begin", "holds"), WRONG_RUN, ids=[" ".join(argv) for argv, _, _ in WRONG_RUN])
def test_a_wrong_word_of_run_is_one_line_and_125(
    capsys: pytest.CaptureFixture[str], argv: list[str], begin: str, holds: str
) -> None:
    code, lines = said(capsys, "run", *argv)
    assert (code, len(lines)) == (125, 1), lines
    assert lines[0].startswith(begin)
    assert holds in lines[0]


def test_a_run_that_a_lost_terminal_would_stop_is_repeated_detached(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = RunOptions(script="train.py", on_disconnect="stop")
    monkeypatch.setattr(Cluster, "options_again", lambda *_: before)
    rendered: list[str] = []

    def render(_: Cluster, options: RunOptions) -> str:
        rendered.append(options.on_disconnect)
        return ""

    monkeypatch.setattr(Cluster, "render", render)
    for detach in (["--detach"], []):
        assert said(capsys, "run", "--again", "r1", "--dry-run", *detach)[0] == 0
    assert rendered == ["keep", "stop"]


# (the command, its exit code, what the line begins with)
WRONG = [
    ([], 2, "no command given; one of up, run, logs"),
    (["trian"], 2, "No such command 'trian'"),
    (["upp"], 2, "No such command 'upp'; did you mean up?"),
    (["statsu"], 2, "No such command 'statsu'; did you mean status?"),
    (["stat"], 2, "No such command 'stat'; did you mean status?"),
    (["frobnicate"], 2, "No such command 'frobnicate'; see clusterddp --help"),
    (["ssh", "gpu01"], 2, "No such command 'ssh'; `clusterddp shell HOST` opens a shell on a host"),
    (["cp"], 2, "No such command 'cp'; `clusterddp push FILE DEST` brings files to every host, `clusterddp pull FILE`"),
    (["list"], 2, "No such command 'list'; `clusterddp runs` lists runs"),
    (["cancel", "x"], 2, "No such command 'cancel'; `clusterddp stop RUN` ends a run"),
    (["attach"], 2, "No such command 'attach'; `clusterddp logs -f` follows a run"),
    (["launch"], 2, "No such command 'launch'; `clusterddp run SCRIPT` starts"),
    (
        ["exec", "a | b"],
        2,
        "'a | b' is one word, so it would be a program's name; write `clusterddp exec --shell 'a | b'`",
    ),
    (["exec", "nvidia-smi -L"], 2, "'nvidia-smi -L' is one word, so it would be a program's name"),
    (["up", "gpu00:2"], 2, "host list item 'gpu00:2': gpu00:2: is 2 a number of processes, or a port?; for processes"),
    (
        ["init", "gpu00:2,gpu01:2222"],
        2,
        "host list item 'gpu00:2': gpu00:2: is 2 a number of processes, or a port?; for processes",
    ),
    (["-C", "nowhere", "hosts"], 2, "-C nowhere: No such file or directory"),
    (["ls", "a"], 2, "Got unexpected extra argument (a); see clusterddp runs --help"),
    (["kill", "--grace", "soon"], 2, "--grace: 'soon' is no duration"),
    (["up", "README.md"], 2, "README.md: is a .md file, no inventory; give an inventory in YAML, or hosts as a,b,c"),
    (["up", "train.py"], 2, "train.py: is a .py file, no inventory"),
    (["--limit", "gpu00", "status"], 2, "no such option --limit; a command's own stand after its name; see clusterddp"),
    (["--versoin"], 2, "no such option --versoin; did you mean --version? see clusterddp --help"),
    (["up"], 2, "Missing argument 'INVENTORY|HOST,HOST…'"),
    (["up", "none.yaml"], 2, "none.yaml: there is no such inventory"),
    (["up", "a/b"], 2, "a/b: there is no such inventory"),
    (["up", "READYOU.md"], 2, "READYOU.md: there is no such inventory"),
    (["up", ""], 2, "host list '' names no host"),
    (["up", "."], 2, ".: is a folder, not an inventory file, and the project lies in it, so Ansible does not read it"),
    (["up", "gpu[1:"], 2, "host list item 'gpu[1:'"),
    (
        ["up", "gpu[01-04]"],
        2,
        "host list item 'gpu[01-04]': 'gpu[01-04]' is not a host name or address; write [first:last",
    ),
    (["up", "a[1-2,4]"], 2, "host list item 'a[1-2': 'a[1-2' is not a host name or address; write [first:last]"),
    (["up", "gpu01", "gpu02"], 2, "gpu02: one inventory is needed, or hosts as a,b,c; what stands behind -- is for"),
    (["hosts", "-i", "gpu01,"], 2, "gpu01,: there is no such inventory file; `clusterddp up gpu01,` takes a list of"),
    (["hosts", "-i", "a,b.yaml"], 2, "a,b.yaml: there is no such inventory file; check the path"),
    (["up", "a,-b"], 2, "host list item '-b'"),
    (["up", "-x"], 2, "no such option -x; see clusterddp up --help"),
    (["logs", "--rank", "5-2"], 2, "--rank: '5-2' is no list of ranks"),
    (["logs", "--since", "yesterday"], 2, "--since: 'yesterday' is no time"),
    (["logs", "--since", "400000d"], 2, "--since: '400000d' is no time"),
    (["logs", "--since", "20261127120000"], 2, "--since: '20261127120000' is no time"),
    (["logs", "-fn5", "-i", "none.yaml"], 125, "none.yaml: there is no such inventory file"),
    (["logs", "--tail", "-1"], 2, "--tail: '-1' is no number of at least 0"),
    (["logs", "--grep", "("], 2, "--grep (: "),
    (["runs", "--diff"], 2, "Option '--diff' requires 2 arguments; see clusterddp runs --help"),
    (["-C", "/", "status", "--limit"], 2, "Option '--limit' requires an argument; see clusterddp status --help"),
    (["logs", "a", "b"], 2, "Got unexpected extra argument (b); see clusterddp logs --help"),
    (["logs", "--follow", "--stream", "x"], 125, "--stream: 'x' is not one of"),
    (["logs", "-tf", "--tail", "x"], 125, "--tail: 'x'"),
    (["logs", "-f", "-i", "none.yaml"], 125, "none.yaml: there is no such inventory file"),
    (["status", "a", "b"], 2, "Got unexpected extra argument (b)"),
    (["runs", "a"], 2, "Got unexpected extra argument (a)"),
    (["stop", "r1", "--all"], 2, "runs beside --all: all of this project are stopped"),
    (["stop", "--grace", "soon"], 2, "--grace: 'soon' is no duration"),
    (["hosts", "--limit", "gpu99"], 2, "limit 'gpu99' selects no host"),
    (["hosts", "-i", "none.yaml"], 2, "none.yaml: there is no such inventory file"),
]


@pytest.mark.parametrize(("argv", "code", "begin"), WRONG, ids=[" ".join(argv) or "nothing" for argv, _, _ in WRONG])
def test_a_wrong_word_is_one_line_and_the_contracts_code(
    capsys: pytest.CaptureFixture[str], argv: list[str], code: int, begin: str
) -> None:
    found, lines = said(capsys, *argv)
    assert (found, len(lines)) == (code, 1), lines
    assert lines[0].startswith(begin)


@pytest.mark.parametrize(
    ("name", "value"),
    [("GRACE", "x"), ("NNODES", "0"), ("SHARE_GPUS", "maybe"), ("GPUS", "z"), ("LIMIT", "gpu99"), ("INVENTORY", "n.y")],
)
def test_a_wrong_variable_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"CLUSTERDDP_{name}", value)
    code, lines = said(capsys, "run", "train.py")
    assert (code, len(lines)) == (125, 1)
    assert lines[0].startswith(f"CLUSTERDDP_{name}: ")
    assert value in lines[0]


@pytest.mark.parametrize(
    ("text", "said_of_it"),
    [
        (b"A=1\n\nnonsense\n", "e:3: nonsense has no value; write it as K=V"),
        (b"A=1\n1B=2\n", "e:2: '1B' is no name of a variable; use letters, digits and _"),
        (b"# \xc3\xa4\nA=1\nB=\xff\n", "e:3: not UTF-8; save it as UTF-8"),
        (b"A=1\nexport B\n", "e:2: B has no value; write it as K=V"),
        (b"A=x\0y\n", "e:1: A has no value; write it as K=V"),
        (b"WORLD_SIZE=4\n", "e:1: WORLD_SIZE is set by torchrun for each worker; leave it out"),
    ],
)
def test_an_env_files_error_names_its_line(folder: Path, text: bytes, said_of_it: str) -> None:
    file = folder / "e"
    file.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        option_checks.read_environment((), file)
    assert str(caught.value) == said_of_it.replace("e:", f"{file}:", 1)


def test_an_env_file_is_read_and_the_lines_words_stand_above_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEN", "ours")
    file = folder / "e"
    file.write_bytes(b"\xef\xbb\xbfFIRST=0\n# comment\n\nA=1\r\nexport B = two words\nC=a=b\nTAKEN=file\n")
    found = option_checks.read_environment(("A=9", "TAKEN", "EMPTY="), file)
    assert found == {"FIRST": "0", "A": "9", "B": " two words", "C": "a=b", "TAKEN": "ours", "EMPTY": ""}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Duration(), "90", 90.0),
        (Duration(), "1.5m", 90.0),
        (Duration(), "3d", 259200.0),
        (Moment(), "1970-01-01T00:00:01+00:00", 10**9),
        (Size(), "500MB", 500_000_000),
        (Size(), "2g", 2_000_000_000),
        (Number(1, auto=True), "auto", None),
        (Number(0), "0", 0),
        (Ranks(), "0,2-4", (0, 2, 3, 4)),
        (Ranks(), "all", None),
    ],
)
def test_words_are_taken_apart(kind: click.ParamType[object], text: str, value: object) -> None:
    assert kind.convert(text, None, None) == value


def test_a_command_can_be_given_for_another_folder(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "other").mkdir()
    (folder / "other" / "i.yaml").write_text("all: {hosts: {there: }}\n")
    for argv in (["-C", "other", "hosts", "-i", "i.yaml"], ["hosts", "-C", "other", "-i", "i.yaml"]):
        monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert not ended.value.code
        assert "there" in capsys.readouterr().out
    monkeypatch.chdir(folder)
    code, lines = said(capsys, "-C", "other", "run", "none.py")
    assert (code, lines[-1].partition(";")[0]) == (125, "script none.py is not there")


def test_what_is_wrong_on_several_hosts_alike_is_one_line(
    capsys: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        errors = [HostError(f"gpu0{number}", "is full", remedy="make room") for number in (0, 1, 2)]
        raise HostsError([*errors, UsageError("no host"), HostError("gpu04", "is gone")])

    monkeypatch.chdir(folder)
    monkeypatch.setattr("clusterddp.cli.actions.hosts_action.open_cluster", fail)
    assert said(capsys, "hosts") == (1, ["gpu[00:02]: is full; make room", "no host", "gpu04: is gone"])


@pytest.mark.parametrize(("argv", "usage"), [(["help"], "Usage: clusterddp [OP"), (["help", "kill"], "stop [OPTIONS]")])
def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str], argv: list[str], usage: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert not ended.value.code
    assert usage in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "60"},
    )
    assert done.stderr == "[]\n"
    assert "Usage: clusterddp" in done.stdout
    assert "..." not in done.stdout.partition("Commands:")[2]  # no command's line is cut


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("run train.py 2>/dev/full", 125),  # 1 would be the script's own code
        ("run train.py >/dev/full 2>&1", 125),
        ("run --bogus 2>/dev/full", 125),
        ("--bogus 2>/dev/full", 2),
        ("hosts 2>/dev/full", 1),
        ("--help | true", 141),
        ("--version | true", 141),
        ("hosts --help | true", 141),
    ],
)
def test_where_nothing_can_be_written_the_exit_code_still_tells(folder: Path, line: str, code: int) -> None:
    words, bar, reader = line.partition(" | ")
    shell_line = f'"$0" -m clusterddp {words}{bar}{reader}; exit ${{PIPESTATUS[0]}}'
    argv = ["bash", "-c", shell_line, sys.executable]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}  # what is still buffered must not fail at exit
    done = subprocess.run(argv, cwd=folder, env=env, check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (code, b"")
