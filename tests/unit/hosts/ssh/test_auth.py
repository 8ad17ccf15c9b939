"""What a server asks at a login is told as its question, on one line, and never as ours."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import paramiko
import pytest
from paramiko.server import InteractiveQuery

from clusterddp.errors import AuthenticationError
from clusterddp.hosts.ssh import auth
from clusterddp.hosts.ssh.auth import MAX_PROMPT_LENGTH, MAX_PROMPTS, Authentication
from clusterddp.hosts.ssh.private_keys import Credentials
from clusterddp.hosts.ssh.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TARGET = Target(
    name="gpu01",
    host="10.0.0.1",
    alias="gpu01.lan",
    port=22,
    user="me",
    key_names=("10.0.0.1",),
    key_files=(),
    named_key_count=0,
    only_named_keys=False,
    agent=False,
    known_hosts=(),
    system_hosts=(),
    accept_new=False,
    connect_timeout=7,
)


class Asking(paramiko.ServerInterface):
    """A server that asks these, and takes any answers."""

    def __init__(self, prompts: list[str]) -> None:
        self.prompts = prompts
        self.answers: list[str] = []
        self.allowed = "keyboard-interactive"
        self.key_taken = False

    def get_allowed_auths(self, username: str) -> str:
        del username
        return self.allowed

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        del username, key
        return paramiko.AUTH_PARTIALLY_SUCCESSFUL if self.key_taken else paramiko.AUTH_FAILED  # type: ignore[attr-defined,no-any-return]

    def check_auth_interactive(self, username: str, submethods: str) -> InteractiveQuery:
        del username, submethods
        return InteractiveQuery("\x1b[2Jtitle", "instructions", *self.prompts)

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        self.answers = responses
        return paramiko.AUTH_SUCCESSFUL  # type: ignore[attr-defined,no-any-return]


@contextlib.contextmanager
def connected(interface: Asking) -> Iterator[paramiko.Transport]:
    """A connection to a server of this process, before the login."""
    ours, theirs = socket.socketpair()
    server, client = paramiko.Transport(theirs), paramiko.Transport(ours)
    server.add_server_key(paramiko.ECDSAKey.generate())
    try:
        server.start_server(threading.Event(), interface)
        client.start_client(timeout=30)
        yield client
    finally:
        client.close()
        server.close()


def asked(prompts: list[str]) -> list[str]:
    """What the user is asked when a server asks so."""
    interface = Asking(prompts)
    found: list[str] = []

    def ask(prompt: str) -> str:
        found.append(prompt)
        return "answer"

    with connected(interface) as client:
        Authentication(target=TARGET, credentials=Credentials(ask)).authenticate(client)
    assert interface.answers == ["answer"] * len(found)
    return found


def test_a_servers_question_says_whose_it_is() -> None:
    assert asked(["Verification code: "]) == ["(me@gpu01.lan) Verification code: "]


def test_nothing_in_it_is_obeyed_by_the_terminal() -> None:
    (prompt,) = asked(["\x1b[2J\x1b[HPassphrase of /home/me/.ssh/id_ed25519:\n"])
    assert prompt == r"(me@gpu01.lan) \x1b[2J\x1b[HPassphrase of /home/me/.ssh/id_ed25519:\n"


def test_a_question_has_an_end() -> None:
    (prompt,) = asked(["x" * 5000])
    assert len(prompt) == len("(me@gpu01.lan) ") + MAX_PROMPT_LENGTH


@pytest.mark.parametrize("count", [0, 2, MAX_PROMPTS])
def test_several_questions_are_asked_one_after_the_other(count: int) -> None:
    assert asked([f"{number}? " for number in range(count)]) == [f"(me@gpu01.lan) {n}? " for n in range(count)]


def test_a_host_that_wants_no_key_gets_none() -> None:
    interface = Asking([])
    interface.check_auth_none = lambda *_: paramiko.AUTH_SUCCESSFUL  # type: ignore[method-assign,attr-defined]
    with connected(interface) as client:
        assert Authentication(target=TARGET).authenticate(client) == []
        assert client.is_authenticated()


def test_an_answer_may_take_longer_than_the_host_allows() -> None:
    """sshd gives 120 s for the login: to type a code, or to confirm on a phone."""
    limits: list[float] = []
    with connected(Asking(["Code: "])) as client:

        def ask(_prompt: str) -> str:
            limits.append(client.auth_timeout)
            return "answer"

        Authentication(target=TARGET, credentials=Credentials(ask)).authenticate(client)
    assert limits == [auth.ANSWER_TIMEOUT]
    assert limits[0] > 120


def test_a_host_that_says_nothing_to_an_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would keep all other hosts from asking."""
    monkeypatch.setattr(auth, "ANSWER_TIMEOUT", 0.5)
    over, interface = threading.Event(), Asking(["Code: "])
    interface.check_auth_interactive_response = lambda _: over.wait(60)  # type: ignore[method-assign,assignment]
    with connected(interface) as client:
        with pytest.raises(AuthenticationError):
            Authentication(target=TARGET, credentials=Credentials(lambda _: "answer")).authenticate(client)
        over.set()


def test_a_host_that_hangs_up_meanwhile_is_told(tmp_path: Path) -> None:
    file = tmp_path / "id_ecdsa"
    paramiko.ECDSAKey.generate().write_private_key_file(str(file))
    interface = Asking(["Code: "])
    interface.allowed = "publickey,keyboard-interactive"
    refused = pytest.raises(AuthenticationError, match=rf"refused {file} \(it hung up before it took an answer\)")
    with connected(interface) as client:

        def ask(_prompt: str) -> str:
            client.sock.close()
            return "answer"

        with refused:
            Authentication(target=replace(TARGET, key_files=(file,)), credentials=Credentials(ask)).authenticate(client)


def test_an_agent_that_hangs_is_told_where_no_key_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "AGENT_TIMEOUT", 0.1)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    refused = pytest.raises(AuthenticationError, match=r"the agent did not answer \(timed out\)")
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "agent"))
        agent.listen()
        with connected(Asking([])) as client, refused:
            Authentication(target=replace(TARGET, agent=True)).authenticate(client)


def test_an_agent_that_is_out_of_order_is_told_where_no_key_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "agent"))
        agent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))

        def refuse() -> None:
            connection, _ = agent.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"\0\0\0\1\5")  # SSH_AGENT_FAILURE

        thread = threading.Thread(target=refuse)
        thread.start()
        refused = pytest.raises(AuthenticationError, match=r"the agent did not answer \(could not get keys")
        try:
            with connected(Asking([])) as client, refused:
                Authentication(target=replace(TARGET, agent=True)).authenticate(client)
        finally:
            thread.join()


@pytest.mark.parametrize("keys", [0, 1])
@pytest.mark.parametrize("allowed", ["publickey,password", "password"])
def test_a_password_is_asked_for_where_the_host_asks_no_questions(tmp_path: Path, keys: int, allowed: str) -> None:
    file = tmp_path / "id_ecdsa"
    paramiko.ECDSAKey.generate().write_private_key_file(str(file))
    interface = Asking([])
    interface.allowed = allowed
    interface.check_auth_interactive = lambda *_: paramiko.AUTH_FAILED  # type: ignore[method-assign,attr-defined]
    interface.check_auth_password = lambda *given: (  # type: ignore[method-assign]
        paramiko.AUTH_SUCCESSFUL if given == ("me", "right") else paramiko.AUTH_FAILED  # type: ignore[attr-defined]
    )
    prompts: list[str] = []

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return "right"

    target = replace(TARGET, key_files=(file,) * keys)
    with connected(interface) as client:
        assert Authentication(target=target, credentials=Credentials(ask)).authenticate(client) == []
    assert prompts == ["Password of me on 10.0.0.1:22: "]


@pytest.mark.parametrize("answer", [None, "wrong"])
@pytest.mark.parametrize("allowed", ["password", "keyboard-interactive,password"])
@pytest.mark.parametrize(
    ("key_taken", "told"), [(False, "takes no keys, only {allowed}"), (True, "took {key}, and also asks for {allowed}")]
)
def test_a_host_that_wants_more_than_a_key_is_not_told_as_one_that_got_none(
    tmp_path: Path,
    allowed: str,
    answer: str | None,
    key_taken: bool,  # noqa: FBT001
    told: str,
) -> None:
    file = tmp_path / "id_ecdsa"
    paramiko.ECDSAKey.generate().write_private_key_file(str(file))
    interface = Asking([])
    interface.allowed, interface.key_taken = allowed, key_taken
    interface.check_auth_interactive = lambda *_: paramiko.AUTH_FAILED  # type: ignore[method-assign,attr-defined]
    credentials = Credentials(None if answer is None else lambda _: answer)
    with connected(interface) as client, pytest.raises(AuthenticationError) as error:
        Authentication(target=replace(TARGET, key_files=(file,)), credentials=credentials).authenticate(client)
    what, _, remedy = str(error.value).partition("; ")
    assert told.format(key=file, allowed=allowed.replace(",", ", ")) in what
    assert ("what was typed did not log in" if answer else "run this at a terminal, where you are asked") in remedy
    assert "ssh-keygen" not in remedy
