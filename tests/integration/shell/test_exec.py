"""`clusterddp exec`: a command on every host, its lines as they come, its codes, and the end of all of it."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from clusterddp import Cluster
from tests.integration.cli import CLUSTERDDP, User, nothing_left
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.cli import Done
    from tests.lab import Lab

# Children that leave the session and their parent, and take no SIGTERM.
DEEP = """
trap '' TERM
(setsid sleep 7001 & )
sh -c "trap '' TERM; sleep 7002; :" &
echo begun
wait
"""


@pytest.fixture
def user(lab: Lab, tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    more = {"gpu01": {"clusterddp_setup": "export FLAVOUR=vanilla", "clusterddp_env": {"SIZE": "10"}}}
    lab.write_inventory(user.folder / "inventory.yaml", more=more)
    user.env["CLUSTERDDP_INVENTORY"] = str(user.folder / "inventory.yaml")
    user.env["CLUSTERDDP_LIMIT"] = "gpu00,gpu01"
    with nothing_left(lab):
        yield user


def fed(user: User, given: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [CLUSTERDDP, "exec", *words], cwd=user.folder, env=user.env, input=given, capture_output=True, check=True
    )


def sleepers(lab: Lab) -> list[str]:
    return [seen.cmdline[1] for host in lab.machines for seen in host.processes() if seen.cmdline[:1] == ("sleep",)]


def begun_everywhere(lab: Lab) -> None:
    """Both children of ``DEEP`` run on both hosts: it says that it has begun before the second one is there."""
    wait_until("the command's children run", lambda: all(sleepers(lab).count(one) == 2 for one in ("7001", "7002")))


def ended_everywhere(lab: Lab) -> None:
    wait_until("no process of the command is left", lambda: not {"7001", "7002"} & set(sleepers(lab)))


def codes(done: Done) -> tuple[int, str]:
    return done.code, done.notes[-1]


def test_each_line_has_its_host_and_the_codes_are_told_where_they_differ(user: User) -> None:
    done = user.run("exec", "--shell", "hostname; echo to-err >&2; test $(hostname) = gpu00 || exit 7")
    assert sorted(done.lines) == ["[gpu00] gpu00", "[gpu00] to-err", "[gpu01] gpu01", "[gpu01] to-err"]
    assert codes(done) == (7, "exit codes: 7 on gpu01; 0 on gpu00")


def test_it_runs_in_the_environment_and_folder_of_a_worker(user: User) -> None:
    text = 'echo "$FLAVOUR $SIZE $CLUSTERDDP_HOST $(basename "$PWD")"'
    user.write("sub/train.py", "")
    first = user.run("exec", "--limit", "gpu01", "--shell", text)
    assert "no workdir there yet" in first.notes[-1]
    synced = user.run("exec", "--limit", "gpu01", "--sync", "--shell", 'ls; echo "${PWD##*/}."').lines
    assert "[gpu01] sub" in synced
    assert "[gpu01] ." not in synced  # a path without a slash at its end
    assert user.run("exec", "--limit", "gpu01", "--shell", text, cwd="sub").lines == ["[gpu01] vanilla 10 gpu01 sub"]
    bare = user.run("exec", "--limit", "gpu01", "--bare", "--shell", "echo $FLAVOUR.$SIZE.$PWD")
    assert bare.lines == ["[gpu01] ../home/trainer"]


def test_arguments_are_never_parsed_by_a_shell(user: User) -> None:
    words = ["a b", "$HOME", "'", "*", "--limit", "\u00e4"]
    done = user.run("exec", "--limit", "gpu00", "printf", "%s|", *words)
    assert done.lines == ["[gpu00] " + "".join(f"{word}|" for word in words)]


def test_equal_outputs_are_folded(user: User) -> None:
    text = "printf 'same\\tas \\033[32mever\\033[0m\\n'; test $(hostname) != gpu02 || echo and more"
    asked = ("exec", "--limit", "gpu00,gpu01,gpu02", "--gather", "--shell", text)
    same = "same\tas \033[32mever\033[0m"
    assert user.run(*asked).lines == [f"gpu00, gpu01 (2): {same}", "gpu02 (1):", f"  {same}", "  and more"]
    coloured = user.run(*asked, env={"CLICOLOR_FORCE": "1"}).lines
    assert coloured[0].startswith("\033[1mgpu00, gpu01 (2):\033[0m same")


def test_no_output_can_pass_for_another_host_s_header(user: User) -> None:
    text = "echo fine; test $(hostname) != gpu01 || printf '\\n\\033[1mgpu00 (1):\\033[0m no\\n\\rgpu02 (1): no\\n'"
    lines = user.run("exec", "--limit", "gpu00,gpu01", "--gather", "--shell", text).lines
    assert [line for line in lines if line[:1] not in ("", " ")] == ["gpu00 (1): fine", "gpu01 (1):"]
    assert [line for line in lines if "no" in line] == ["  \033[1mgpu00 (1):\033[0m no", "  gpu02 (1): no"]


def test_as_json_each_line_and_each_end_is_an_object(user: User) -> None:
    done = user.run("exec", "--json", "--limit", "gpu00", "--shell", "echo one; echo two >&2; exit 3")
    lines = [json.loads(line) for line in done.lines]
    assert {(line["stream"], line["text"]) for line in lines[:-1]} == {("out", "one"), ("err", "two")}
    assert (lines[-1]["host"], lines[-1]["exit_code"]) == ("gpu00", 3)


def test_input_goes_to_every_host_whole(user: User) -> None:
    given = b"0123456789abcde\n" * 200_000  # 3.2 MB: more than is granted at once
    done = fed(user, given, "wc", "-c")
    assert sorted(done.stdout.split()) == sorted([b"[gpu00]", b"3200000", b"[gpu01]", b"3200000"])


def test_input_that_nobody_reads_holds_nothing_up(user: User) -> None:
    done = fed(user, b"x" * 5_000_000, "true")
    assert done.stdout == b""


def test_ctrl_c_ends_all_of_it_everywhere_and_says_so(user: User, lab: Lab) -> None:
    with user.start("exec", "--shell", DEEP) as live:
        live.wait_for("[gpu00] begun")
        live.wait_for("[gpu01] begun")
        begun_everywhere(lab)
        live.interrupt()
        done = live.end()
    assert not {"7001", "7002"} & set(sleepers(lab))
    assert codes(done) == (130, "ended; nothing of it is left on gpu00, gpu01")


def test_an_operator_that_is_killed_leaves_nothing(user: User, lab: Lab) -> None:
    with user.start("exec", "--shell", DEEP) as live:
        live.wait_for("[gpu00] begun")
        live.wait_for("[gpu01] begun")
        begun_everywhere(lab)
        live.process.kill()
        ended_everywhere(lab)


def test_out_of_time_is_124_and_ends_all_of_it(user: User, lab: Lab) -> None:
    done = user.run("exec", "--timeout", "0.3s", "--shell", DEEP)
    assert codes(done) == (124, "gpu00, gpu01: out of time after 0.3 s; nothing of it is left")
    assert not {"7001", "7002"} & set(sleepers(lab))


def test_what_is_left_in_the_background_is_named_and_lives(user: User, lab: Lab) -> None:
    done = user.run("exec", "--limit", "gpu00", "--shell", "sleep 7001 & echo gone")
    try:
        assert (done.code, done.lines) == (0, ["[gpu00] gone"])
        assert "gpu00: left running: " in done.notes[-1]
        assert "sleep 7001" in done.notes[-1]
        assert "7001" in sleepers(lab)
    finally:
        user.run("exec", "--limit", "gpu00", "pkill", "-f", "sleep 7001")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "one command is needed; write it after --, or as text by --shell"),
        (("--shell", "true", "true"), 2, "one command is needed"),
        (("--gather", "--json", "true"), 2, "--gather with --json"),
        (("--timeout", "0", "true"), 2, "no time at all"),
        (("no-such-program",), 127, "no-such-program: command not found"),
    ],
)
def test_what_cannot_be_run_is_one_line(user: User, words: tuple[str, ...], code: int, said: str) -> None:
    done = user.run("exec", "--limit", "gpu00", *words)
    assert (done.code, said in done.notes[-1]) == (code, True), done.err


def test_a_host_that_does_not_answer_counts_125_and_holds_nobody_up(user: User) -> None:
    inventory = user.folder / "inventory.yaml"
    text = inventory.read_text()
    inventory.write_text(text.replace("gpu01:", "gpu09:\n      ansible_host: 10.77.0.99\n    gpu01:", 1))
    done = user.run("exec", "--limit", "gpu00,gpu09", "echo", "here")
    assert done.lines == ["[gpu00] here"]
    assert codes(done) == (125, "exit codes: 125 on gpu09; 0 on gpu00")
    assert any(note.startswith("gpu09: ") for note in done.notes)


def test_spares_alone_are_hosts_too(user: User, lab: Lab) -> None:
    lab.write_inventory(user.folder / "inventory.yaml", more={"gpu01": {"clusterddp_role": "spare"}})
    user.write("weights", "w")
    assert user.run("sync", "--limit", "gpu01").code == 0
    assert user.run("push", "--limit", "gpu01", "weights", "moved/").code == 0
    assert user.run("exec", "--limit", "gpu01", "cat", "moved/weights").lines == ["[gpu01] w"]
    assert user.run("doctor", "--limit", "gpu01", "--only", "connection").code == 0


def test_from_python_ends_come_with_their_output(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(user.home))
    with Cluster.from_inventory(user.folder / "inventory.yaml", limit="gpu00,gpu01") as cluster:
        ends = cluster.exec("sh", "-c", "hostname; exit 4", bare=True)
    assert [(end.host, end.code, end.output) for end in ends] == [("gpu00", 4, b"gpu00\n"), ("gpu01", 4, b"gpu01\n")]
