"""The helper and its client over real pipes: start, requests, credit, and every way to end."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HelperError, UnreachableError
from clusterddp.hosts import client, stalled
from clusterddp.hosts.client import Host
from clusterddp.hosts.start_helper import handshake
from clusterddp.remote.shared.wire.frames import CREDIT, MAX_ARGS_PARTS, MAX_BODY, Decoder, encode
from clusterddp.remote.system import procfs
from tests.integration.real_helper import Shell, alive, entry, opened, wait_for, with_test_operations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.hosts.ssh.pipes import ChildPipe
    from clusterddp.remote.shared.wire.frames import Frame

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")

MIB = 1 << 20
LOGIN_SHELLS = ["bash", "csh", "tcsh", "fish", "dash"]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def host(state: Path) -> Iterator[Host]:
    """A helper shared by the tests that leave it healthy."""
    with opened(state, with_test_operations()) as shared:
        yield shared


@pytest.fixture
def own(state: Path) -> Iterator[Host]:
    """A helper to be broken."""
    with opened(state, with_test_operations()) as host:
        yield host


def resident(pid: int) -> int:
    """Bytes of memory a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


class TestStart:
    def test_the_hello_tells_who_answers(self, host: Host, state: Path) -> None:
        assert host.hello.state == str(state)
        assert host.hello.uid == os.getuid()
        assert host.hello.boot == procfs.boot_identity()
        assert alive(host.hello.pid)
        assert host.noise == ""

    @pytest.mark.parametrize("shell", LOGIN_SHELLS)
    def test_any_login_shell_runs_the_constant_command(self, state: Path, shell: str) -> None:
        program = shutil.which(shell)
        if program is None:
            pytest.skip(f"no {shell} here")
        with Host.open(entry(state), Shell(program)) as host:
            assert host.ping()

    def test_noise_of_a_login_shell_is_reported_not_parsed(self, tmp_path: Path, state: Path) -> None:
        noisy = tmp_path / "noisy"
        noisy.write_text('#!/bin/sh\necho "Welcome to gpu01"; printf "CLUSTERDDP"; echo; eval "$2"\n')
        noisy.chmod(0o700)
        with Host.open(entry(state), Shell(str(noisy))) as host:
            assert host.noise == "Welcome to gpu01\nCLUSTERDDP\n"
            assert host.ping()

    def python3(self, folder: Path, text: str) -> dict[str, str]:
        """An environment whose PATH has only this ``python3``."""
        folder.mkdir(exist_ok=True)
        if text:
            (folder / "python3").write_text(text)
            (folder / "python3").chmod(0o700)
        return {"PATH": str(folder), "HOME": os.environ.get("HOME", "/")}

    @pytest.mark.parametrize(
        ("text", "given", "message"),
        [
            ("", {}, "here: no python3 on the host; set ansible_python_interpreter"),
            ("", {"ansible_python": "/opt/no/python"}, "here: no /opt/no/python on the host"),
            ("#!/bin/sh\nexit 97\n", {}, "here: the host's Python is older than 3.8"),
            ("#!/bin/sh\necho 'Illegal instruction' >&2; exit 132\n", {}, "(exit 132): Illegal instruction"),
        ],
    )
    def test_a_host_without_a_usable_python(
        self, tmp_path: Path, text: str, given: dict[str, Any], message: str
    ) -> None:
        shell = Shell("/bin/sh", env=self.python3(tmp_path / "bin", text))
        with pytest.raises(HelperError) as caught:
            Host.open(entry(tmp_path / "state", python=None, **given), shell)
        assert message in str(caught.value)

    def test_the_training_interpreter_serves_where_python3_is_too_old(self, tmp_path: Path) -> None:
        shell = Shell("/bin/sh", env=self.python3(tmp_path / "bin", "#!/bin/sh\nexit 97\n"))
        with Host.open(entry(tmp_path / "state"), shell) as host:
            assert Path(host.hello.executable).samefile(sys.executable)

    @pytest.mark.parametrize("variable", ["python", "ansible_python"])
    @pytest.mark.parametrize("shell", LOGIN_SHELLS)
    def test_an_interpreter_below_the_home_serves(self, tmp_path: Path, state: Path, shell: str, variable: str) -> None:
        program = shutil.which(shell)
        if program is None:
            pytest.skip(f"no {shell} here")
        environment = self.python3(tmp_path / "bin", "#!/bin/sh\nexit 97\n") | {"HOME": str(tmp_path)}
        link = tmp_path / "my venv" / "python"
        link.parent.mkdir()
        link.symlink_to(sys.executable)
        there = entry(state, **{variable: "~/my venv/python"})
        with Host.open(there, Shell(program, env=environment)) as host:
            assert host.hello.executable == str(link)

    @pytest.mark.parametrize("shell", ["/bin/false", "/usr/sbin/nologin"])
    def test_an_account_without_a_shell(self, tmp_path: Path, shell: str) -> None:
        if not Path(shell).exists():
            pytest.skip(f"no {shell} here")
        with pytest.raises(HelperError, match="here: the helper did not start \\(exit 1\\)"):
            Host.open(entry(tmp_path), Shell(shell))

    def test_a_state_folder_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(HelperError, match=r"here: cannot write .*Not a directory; set clusterddp_state"):
            Host.open(entry(tmp_path / "file" / "state"), Shell("/bin/sh"))

    def test_a_login_that_hangs_is_given_up(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client, "HANDSHAKE_TIMEOUT", 0.3)
        hanging = tmp_path / "hanging"
        hanging.write_text("#!/bin/sh\nexec sleep 600\n")
        hanging.chmod(0o700)
        with pytest.raises(UnreachableError, match="here: the helper did not start within"):
            Host.open(entry(tmp_path), Shell(str(hanging)))


class TestRequests:
    def test_arguments_come_as_they_were(self, host: Host) -> None:
        args = {"text": "a'b\"c$(x)\n\0ü\U0001f525", "list": [1, None, {"k": 1.5}]}
        answer = host.call("echo", args)
        assert {name: answer["args"][name] for name in args} == args

    def test_arguments_that_grow_with_2000_hosts_come_as_they_were(self, host: Host) -> None:
        targets = [[f"fd00:0:0:0:0:0:0:{n:x}", 29400 + n % 100, f"{n:032x}", 10, 9000] for n in range(4000)]
        nonces = {f"gpu{n:04}": f"{n:032x}" for n in range(2000)}
        answer = host.call("echo", {"targets": targets, "nonces": nonces, "text": "x" * 500_000})
        assert (answer["args"]["targets"], answer["args"]["nonces"]) == (targets, nonces)
        assert len(answer["args"]["text"]) == 500_000

    def test_much_goes_up_and_much_comes_down(self, host: Host) -> None:
        pieces = [bytes([number]) * 1_000_003 for number in range(20)]
        answer = host.upload("echo", {}, iter(pieces), timeout=60)
        assert answer["size"] == 20 * 1_000_003
        assert answer["sha256"] == hashlib.sha256(b"".join(pieces)).hexdigest()
        frames = list(host.stream("flood", {"bytes": 20 * MIB}))
        assert sum(len(frame.body) for frame in frames[:-1]) == 20 * MIB
        assert json.loads(frames[-1].body) == {"sent": 20 * MIB}

    def test_a_large_early_answer_ends_an_upload(self, host: Host) -> None:
        taken = itertools.count()
        pieces = (b"x" * MAX_BODY for _ in taken)
        answer = host.upload("early", {"much": 3 * MIB}, pieces, timeout=60)
        assert (answer["first"], len(answer["much"])) == (MAX_BODY, 3 * MIB)

    def test_a_large_result_comes_whole(self, host: Host) -> None:
        assert len(host.upload("early", {"much": 3 * MIB}, [b"x"], timeout=60)["much"]) == 3 * MIB

    def test_two_at_once_do_not_wait_for_each_other(self, host: Host) -> None:
        with_first = host.stream("hold")
        next(with_first)
        assert host.call("work", {"seconds": 0.0}) == "done"
        assert host.ping()
        with_first.close()

    def test_a_refusal_carries_its_remedy(self, host: Host) -> None:
        with pytest.raises(HelperError) as caught:
            host.call("refuse")
        assert (caught.value.message, caught.value.remedy) == ("here: the disk is full", "make room")

    def test_a_broken_pipe_of_its_own_is_an_error_too(self, host: Host) -> None:
        with pytest.raises(HelperError, match="here: BrokenPipeError: a pipe of its own"):
            host.call("broken", timeout=20)

    def test_one_that_is_killed_is_answered_for(self, host: Host) -> None:
        with pytest.raises(UnreachableError, match="here: the operation ended with status 137"):
            host.call("die", timeout=20)

    def test_one_that_is_interrupted_from_outside_is_answered_for_as_if_it_were_killed(self, host: Host) -> None:
        stream = host.stream("hold")
        os.kill(next(stream).header["pid"], signal.SIGINT)
        with pytest.raises(UnreachableError, match="here: the operation ended with status 130"):
            next(stream)

    def test_one_that_finds_no_room_for_another_process_may_be_repeated(self, own: Host) -> None:
        limits = resource.prlimit(own.hello.pid, resource.RLIMIT_NOFILE)
        opened = len(list(Path(f"/proc/{own.hello.pid}/fd").iterdir()))
        resource.prlimit(own.hello.pid, resource.RLIMIT_NOFILE, (opened, limits[1]))
        with pytest.raises(UnreachableError, match=r"here: cannot start echo: .*Too many open files"):
            own.call("echo", timeout=20)
        resource.prlimit(own.hello.pid, resource.RLIMIT_NOFILE, limits)
        assert own.call("echo", {"text": "x"}, timeout=20)["args"]["text"] == "x"

    def test_those_that_find_no_room_for_both_their_pipes_take_none(self, own: Host) -> None:
        limits = resource.prlimit(own.hello.pid, resource.RLIMIT_NOFILE)
        files = Path(f"/proc/{own.hello.pid}/fd")
        opened = len(list(files.iterdir()))
        resource.prlimit(own.hello.pid, resource.RLIMIT_NOFILE, (opened + 3, limits[1]))
        for _ in range(2):
            with pytest.raises(UnreachableError, match=r"here: cannot start echo: .*Too many open files"):
                own.call("echo", timeout=20)
        assert len(list(files.iterdir())) == opened
        resource.prlimit(own.hello.pid, resource.RLIMIT_NOFILE, limits)
        assert own.call("echo", {"text": "x"}, timeout=20)["args"]["text"] == "x"

    def test_an_unknown_operation_is_named(self, host: Host) -> None:
        with pytest.raises(HelperError, match="here: no such operation: nonsense"):
            host.call("nonsense")
        assert host.ping()

    def test_a_request_too_large_for_a_frame_is_refused_here(self, host: Host) -> None:
        with pytest.raises(HelperError, match="here: the request is too large: args of"):
            host.call("echo", {"text": "x" * (MAX_ARGS_PARTS * MAX_BODY)})
        assert host.call("echo", {"text": "x"})["args"]["text"] == "x"

    def test_stray_output_is_no_frame(self, host: Host) -> None:
        assert host.call("prints") == {"stdin": ""}
        assert host.ping()

    def test_one_that_takes_too_long_is_cancelled(self, host: Host) -> None:
        with pytest.raises(HelperError, match="here: the operation took too long"):
            host.call("work", {"seconds": 600}, timeout=0.2)
        assert host.ping()


class TestCredit:
    def test_a_ping_is_answered_while_an_operation_is_busy(self, host: Host) -> None:
        busy = host.stream("work", {"seconds": 1.0})
        worker = threading.Thread(target=lambda: list(busy))
        worker.start()
        sent, _, received = host.ping(5)
        assert received - sent < 1_000_000_000
        worker.join()

    def test_a_reader_that_pauses_stops_the_operation_and_nothing_else(self, host: Host, tmp_path: Path) -> None:
        note = tmp_path / "sent"
        stream = host.stream("flood", {"bytes": 1 << 40, "note": str(note)})
        next(stream)
        limit = CREDIT + 2 * MAX_BODY
        wait_for(lambda: note.exists() and int(note.read_text() or 0) >= CREDIT, "the credit to be used")
        before = resident(host.hello.pid)
        for _ in range(20):
            assert host.ping(5)
        assert int(note.read_text()) <= limit
        assert resident(host.hello.pid) - before < 8 * MIB
        for _ in range(100):
            next(stream)
        assert int(note.read_text()) <= limit + 100 * MAX_BODY
        stream.close()

    def test_control_overtakes_data_on_a_full_pipe(self, state: Path) -> None:
        """Nothing is read until six floods have filled the pipe and the helper's queue; then a ping is asked."""
        pipe = Shell("/bin/sh").open(entry(state))
        try:
            handshake(entry(state), pipe, with_test_operations())
            frames = _frames(pipe, b"")
            notes = [state / f"note{number}" for number in range(6)]
            for number, note in enumerate(notes, 1):
                pipe.write(_request(number, "flood", {"bytes": 1 << 30, "note": str(note)}))
            wait_for(lambda: sum(_number(note) for note in notes) >= 4 * MIB, "the helper's queue to fill")
            pipe.write(_request(99, "ping", {}))
            before = 0
            for frame in frames:
                if frame.header["id"] == 99:
                    break
                before += len(frame.body)
            assert before < 2 * MIB  # what was on its way already
        finally:
            pipe.close()


def _number(note: Path) -> int:
    return int(note.read_text() or 0) if note.exists() else 0


def _request(ident: int, op: str, args: dict[str, Any]) -> bytes:
    return encode({"id": ident, "kind": "req", "op": op, "args": args})


def _frames(pipe: ChildPipe, rest: bytes) -> Iterator[Frame]:
    decoder = Decoder()
    yield from decoder.feed(rest)
    while data := pipe.read(1 << 16):
        yield from decoder.feed(data)


class TestEnds:
    def test_a_cancelled_operation_is_killed_with_its_children(self, host: Host) -> None:
        stream = host.stream("hold")
        pids = next(stream).header
        assert alive(pids["pid"])
        stream.close()
        wait_for(lambda: not alive(pids["pid"]) and not alive(pids["child"]), "the operation's end")
        assert host.ping()

    def test_the_end_of_the_connection_ends_helper_and_operations(self, own: Host) -> None:
        stream = own.stream("hold")
        pids = next(stream).header
        own.close()
        for pid in (own.hello.pid, pids["pid"], pids["child"]):
            wait_for(lambda pid=pid: not alive(pid), "the end of all")  # type: ignore[misc]
        with pytest.raises(UnreachableError, match="closed"):
            next(stream)

    def test_a_helper_that_is_killed_takes_its_operations_along_and_is_named(self, own: Host) -> None:
        streams = [own.stream("hold"), own.stream("hold")]  # the second begins with all that the first has open
        pids = [next(stream).header for stream in streams]
        os.kill(own.hello.pid, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(UnreachableError, match="here: the connection was lost"):
                next(stream)
        wait_for(lambda: not any(alive(one["pid"]) or alive(one["child"]) for one in pids), "the operations' end")
        assert own.lost
        with pytest.raises(UnreachableError):
            own.call("echo")

    @pytest.mark.parametrize(
        "junk",
        [b"\xff\xff\xff\xff", b"\0\0\0\2[]", encode({"id": 1, "kind": "req"}), encode({"id": "x", "kind": "req"})],
        ids=["too large", "no object", "no operation", "no number"],
    )
    def test_bytes_that_are_no_request_end_the_helper_quietly(self, own: Host, junk: bytes) -> None:
        own._pipe.write(junk)
        wait_for(lambda: own.lost, "the helper's end")
        assert "Traceback" not in own._pipe.stderr()
        assert own._pipe.exit_status() == 0

    def test_closing_leaves_no_thread_and_no_descriptor(self, state: Path) -> None:
        def descriptors() -> int:
            return len(list(Path("/proc/self/fd").iterdir()))

        before, threads = descriptors(), threading.active_count()
        for _ in range(3):
            with opened(state, with_test_operations()) as host:
                host.upload("echo", {}, [b"x"])
        assert (descriptors(), threading.active_count()) == (before, threads)


class TestDeadHost:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client, "PING_AFTER", 0.2)
        monkeypatch.setattr(client, "SILENCE_TIMEOUT", 1.5)
        monkeypatch.setattr(stalled, "CHECK_INTERVAL", 0.1)

    def test_a_host_that_is_only_busy_is_not_given_up(self, own: Host) -> None:
        assert own.call("work", {"seconds": 2.5}, timeout=60) == "done"

    def test_a_silent_host_is_given_up(self, own: Host) -> None:
        os.kill(own.hello.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="here: the connection was lost \\(no answer for"):
            own.call("echo", timeout=60)
        assert time.monotonic() - began < 20

    def test_an_upload_to_a_silent_host_is_given_up_though_its_writes_block(self, own: Host) -> None:
        os.kill(own.hello.pid, signal.SIGSTOP)
        with pytest.raises(UnreachableError, match="here: the connection was lost \\(it took nothing for"):
            own.upload("echo", {}, [b"x" * MIB] * 20, timeout=60)
