"""`shell` on a terminal and `forward`, on real hosts."""

from __future__ import annotations

import signal
import termios
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.integration.cli import User, nothing_left
from tests.lab.system import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.lab import Lab

LOOK = "echo A$((1 + 1))B:$CLUSTERDDP_HOST:$GREETING:$PWD:$(command -v python | wc -l):$(tty | cut -c-8)\r"


@pytest.fixture
def user(tmp_path: Path, lab: Lab) -> User:
    made = User(tmp_path)
    made.env["CLUSTERDDP_INVENTORY"] = str(
        lab.write_inventory(tmp_path / "inventory.yaml", more={"all": {"clusterddp_env": {"GREETING": "hello"}}})
    )
    return made


def test_a_shell_has_a_terminal_and_what_a_worker_has_and_its_exit_code(lab: Lab, user: User) -> None:
    host = lab.hosts[1]
    with nothing_left(lab), user.start("shell", host.name, terminal=True) as live:
        live.wait_for("$")
        live.key(LOOK)
        live.wait_for(f"A2B:{host.name}:hello:/home/trainer:1:/dev/pts")
        live.key("stty size\r")
        live.wait_for("24 80")
        live.key("sleep 600\r")
        wait_until("it runs", lambda: [one for one in host.processes() if one.cmdline == ("sleep", "600")])
        live.key("\x03")  # Ctrl-C is the shell's, not ours
        live.key("exit 7\r")
        assert live.end().code == 7
        assert user.run("shell", host.name).code == 0  # without a terminal, and nothing to read, it ends
    assert not [one for one in host.processes() if one.cmdline == ("sleep", "600")]


def test_a_shell_is_left_by_its_escape_and_ends_with_the_terminal(lab: Lab, user: User) -> None:
    host = lab.hosts[2]
    with nothing_left(lab), user.start("shell", "--bare", host.name, terminal=True) as live:
        live.wait_for("$")
        live.key("echo ~. no line begins here; echo ${HOST}A\r")
        live.wait_for("A\r\n")
        live.key("sleep 600\r")  # hears no end of input, and says nothing
        wait_until("it runs", lambda: [one for one in host.processes() if one.cmdline == ("sleep", "600")])
        live.key("~.")
        assert live.end().code == 0
    with nothing_left(lab), user.start("shell", host.name, terminal=True) as live:
        live.wait_for("$")
        live.process.kill()
        live.end()


def test_a_shell_that_is_terminated_leaves_the_terminal_as_it_was(lab: Lab, user: User) -> None:
    with nothing_left(lab), user.start("shell", "--bare", lab.hosts[1].name, terminal=True) as live:
        live.wait_for("$")
        assert not termios.tcgetattr(live._terminal)[3] & termios.ECHO
        live.process.terminate()
        assert live.process.wait(user.limit) == 143
        assert termios.tcgetattr(live._terminal)[3] & termios.ECHO


def test_a_shell_of_a_run_has_its_folder_and_a_forwarded_port_answers(lab: Lab, user: User) -> None:
    user.write("serve.py", "import threading\nprint('up', flush=True)\nthreading.Event().wait(600)\n")
    second = lab.hosts[1]
    with nothing_left(lab), user.start("run", "--limit", "gpu00,gpu01", "--env", "SIZE=small", "serve.py") as run:
        ident = run.run
        run.wait_for("[1 gpu01:0] up")
        with user.start("shell", "--run", ident, second.name, terminal=True) as live:
            live.wait_for("$")
            live.key("echo A$((1 + 1)):$SIZE:${CLUSTERDDP_RUN_DIR##*/}:$(ls)\r")
            live.wait_for(f"A2:small:{ident}-gpu01:serve.py")
            live.key("env | grep -c -e ^PET_ -e ^CLUSTERDDP_RUN_ID | sed s/^/N/\r")  # nor is it stopped with the run
            live.wait_for("N0")
            live.key("python3 -m http.server --bind 127.0.0.1 6123\r")
            live.wait_for("Serving HTTP")
            _try_ports(user)
            live.key("\x03")
            live.key("exit\r")
            assert live.end().code in (0, 130)
        run.interrupt()
        assert run.end().code == 130


def _try_ports(user: User) -> None:
    """One that is served there by the host of rank 1, and one where nobody listens."""
    with user.start("forward", "1:6123", "gpu00:6124") as ports:
        ports.wait_for("gpu00:6124")
        served, silent = (line.split()[0] for line in ports.text().splitlines())
        assert b"serve.py" in urllib.request.urlopen(served, timeout=20).read()
        with pytest.raises(OSError, match=r"reset|closed|refused"):
            urllib.request.urlopen(silent, timeout=20).read()
        ports.wait_for("nothing answers on its port 6124", stream="err")
        ports.process.send_signal(signal.SIGTERM)
        assert ports.end().code == 0


def test_what_cannot_be_opened_is_said_in_one_line(lab: Lab, user: User) -> None:
    del lab
    for words, said in {
        ("shell", "gpu0"): "'gpu0' is no host of the inventory; did you mean gpu0",
        ("forward", "gpu00:0"): "'gpu00:0' is no port; write 6006, 0:6006 (rank 0's) or gpu01:6006",
        ("forward", "lab:80"): "'lab' is no host of the inventory",
    }.items():
        done = user.run(*words)
        assert (done.code, said in done.err) == (2, True), done.err
