"""What goes between the hosts of a run before an attempt, over real sockets: whole, from the right member, or not."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.control.connection import Secret
from clusterddp.remote.shared.wire.chunks import CHUNK
from clusterddp.remote.supervisor import replication
from clusterddp.remote.supervisor.replication import ReplicaFetcher, ReplicaServer, ReplicaSource
from clusterddp.remote.transfer import replicated_paths
from clusterddp.remote.transfer.replicated_paths import PathContent, decode_content, encode_content, read_content

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY, PATH = b"k" * 32, "ckpt/last"


class Nodes:
    """The workdirs of nodes of a run, by member; member 9 is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.serving: list[ReplicaServer] = []
        self.workdir(9).mkdir()

    def workdir(self, member: int) -> Path:
        return self.folder / f"node{member}"

    def serve(self, member: int, key: bytes = KEY, paths: tuple[str, ...] = (PATH,)) -> ReplicaSource:
        """A node that has what lies in its workdir."""
        listener = socket.create_server(("127.0.0.1", 0))
        serving = ReplicaServer(Secret(key, "r1", member), listener, str(self.workdir(member)), paths)
        self.serving.append(serving)
        return ReplicaSource(member, f"gpu0{member}", ("127.0.0.1", serving.port))

    def take(self, *sources: ReplicaSource, stopped: bool = False) -> list[str]:
        """Have the new node take from them; what it tells."""
        said: list[str] = []
        taking = ReplicaFetcher(
            Secret(KEY, "r1", 9), str(self.workdir(9)), (PATH,), sources, lambda: stopped, said.append, 0o022
        )
        taking._thread.join(30)
        assert taking.done
        return said

    def write(self, member: int, text: bytes, name: str = "weights.bin") -> None:
        """A checkpoint, linked to as the last one."""
        epoch = self.workdir(member) / "ckpt/epoch_7"
        epoch.mkdir(parents=True, exist_ok=True)
        (epoch / name).write_bytes(text)
        if not (epoch.parent / "last").exists():
            (epoch.parent / "last").symlink_to("epoch_7")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    for serving in nodes.serving:
        serving.close()


def read(nodes: Nodes, name: str = PATH) -> dict[str, bytes]:
    folder = nodes.workdir(9) / name
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


def test_a_new_node_gets_it_whole_from_the_lowest_member_that_has_it(nodes: Nodes) -> None:
    large = os.urandom(CHUNK) * 2 + b"end"
    for member in (1, 2):
        nodes.write(member, large)
        nodes.write(member, b"", "empty")
    nodes.workdir(0).mkdir()
    assert nodes.take(*map(nodes.serve, range(3))) == ["ckpt/last: from gpu01 (8.4 MB)"]
    assert read(nodes) == {"weights.bin": large, "empty": b""}
    assert (nodes.workdir(9) / PATH).readlink().name == "epoch_7"
    assert [path.name for path in sorted((nodes.workdir(9) / "ckpt").iterdir())] == ["epoch_7", "last"]
    assert (nodes.workdir(9) / PATH / "weights.bin").stat().st_mode & 0o777 == 0o644
    assert nodes.take(*map(nodes.serve, range(3))) == ["ckpt/last: is here already"]


def test_of_copies_that_differ_none_is_taken_and_each_is_named(nodes: Nodes) -> None:
    nodes.write(0, b"one")
    nodes.write(1, b"two")
    nodes.write(9, b"mine")
    told = nodes.take(nodes.serve(0), nodes.serve(1))
    assert told == ["ckpt/last: copies differ on gpu00, gpu01: none is taken"]
    assert read(nodes) == {"weights.bin": b"mine"}


def test_what_stood_there_keeps_a_numbered_name(nodes: Nodes) -> None:
    nodes.write(0, b"new")
    nodes.write(9, b"old")
    nodes.write(9, b"a shard of before", "shard")
    assert nodes.take(nodes.serve(0)) == ["ckpt/last: from gpu00 (0.0 MB)"]
    assert read(nodes) == {"weights.bin": b"new"}
    assert read(nodes, "ckpt/epoch_7.~1~") == {"weights.bin": b"old", "shard": b"a shard of before"}


def test_a_file_and_a_link_out_of_the_folder_go_as_what_they_are(nodes: Nodes) -> None:
    scratch = nodes.folder / "scratch"
    scratch.mkdir()
    (scratch / "s.bin").write_bytes(b"far")
    for member, target in ((0, "file"), (1, "link")):
        (nodes.workdir(member) / "ckpt").mkdir(parents=True)
        if target == "file":
            (nodes.workdir(member) / PATH).write_bytes(b"far")
        else:
            (nodes.workdir(member) / PATH).symlink_to(scratch / "s.bin")
    (nodes.workdir(9) / "elsewhere").mkdir()
    (nodes.workdir(9) / "ckpt").symlink_to("elsewhere")
    assert nodes.take(nodes.serve(0), nodes.serve(1)) == ["ckpt/last: from gpu00 (0.0 MB)"]
    assert (nodes.workdir(9) / "elsewhere/last").read_bytes() == b"far"


def test_who_lacks_the_key_or_asks_for_another_path_gets_nothing(nodes: Nodes) -> None:
    nodes.write(0, b"x")
    assert nodes.take(nodes.serve(0, key=b"other")) == ["ckpt/last: no host of the run has it; gpu00 cannot be asked"]
    assert nodes.take(nodes.serve(0, paths=("other",))) == ["ckpt/last: no host of the run has it"]
    gone = nodes.serve(0)
    nodes.serving[-1].close()
    assert nodes.take(gone) == ["ckpt/last: no host of the run has it; gpu00 cannot be asked"]
    assert nodes.take(nodes.serve(0), stopped=True) == []
    assert list(nodes.workdir(9).iterdir()) == []


@pytest.mark.parametrize(
    ("secret", "asks"),
    [
        (Secret(b"x" * 32, "r1", 9), {}),
        (Secret(KEY, "r2", 9), {}),
        (Secret(KEY, "r1", 9), {"path": "other"}),
        (Secret(KEY, "r1", 9), {"member": 8}),
        (Secret(KEY, "r1", 9), {"nonce": "0" * 32}),
        (Secret(KEY, "r1", 9), {"get": False}),
    ],
    ids=["key", "run", "path", "member", "nonce", "get"],
)
def test_a_question_is_answered_only_as_it_was_proved(nodes: Nodes, secret: Secret, asks: dict[str, object]) -> None:
    nodes.write(0, b"x")
    source = nodes.serve(0)
    with socket.create_connection(source.address, 30) as connection, connection.makefile("rb") as answers:
        theirs, ours = json.loads(answers.readline())["nonce"], "f" * 32
        proof = replication._proof(secret, "asks", theirs, ours, 9, 0, PATH, True)
        asked = {"member": 9, "nonce": ours, "path": PATH, "get": True, "proof": proof, **asks}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        assert answers.read() == b""


@pytest.mark.parametrize("key", [KEY, b"x" * 32, None], ids=["the run's key", "another key", "no ASCII"])
def test_only_what_was_proved_is_read_and_only_from_who_proved_it(nodes: Nodes, key: bytes | None) -> None:
    """The impostor sends no body before the fetcher, which must not wait for one, hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hung_up = []

        def answer() -> None:
            connection = listener.accept()[0]
            connection.settimeout(20)
            with connection, connection.makefile("rb") as asked:
                connection.sendall(b'{"nonce": "00"}\n')
                ours = json.loads(asked.readline())["nonce"]
                values = ("00", ours, 9, 0, PATH, False, 1, 1, "d" * 64)
                proof = replication._proof(Secret(key, "r1", 0), "tells", *values) if key else "\u00e9\ud800"
                head = {"manifest": 1, "chunk_lists": 1, "digest": "d" * 64, "proof": proof}
                connection.sendall(json.dumps(head).encode() + b"\n" + b"[]" * (key == KEY))
                with contextlib.suppress(ConnectionError):
                    asked.read()
                hung_up.append(True)

        impostor = threading.Thread(target=answer, daemon=True)
        impostor.start()
        told = nodes.take(ReplicaSource(0, "gpu00", ("127.0.0.1", listener.getsockname()[1])))
        impostor.join(30)
    assert hung_up
    assert told == ["ckpt/last: no host of the run has it; gpu00 cannot be asked"]


def test_who_connects_and_asks_nothing_keeps_nobody_waiting(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "MAX_UNPROVEN", 6)
    nodes.write(0, b"x")
    source = nodes.serve(0)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(source.address, 30)) for _ in range(8)]
        for connection in silent[-5:]:
            assert connection.recv(1) == b"{"
            connection.sendall(b"{")
        assert silent[0].makefile("rb").read().count(b"\n") == 1  # the oldest gave way: its nonce, and the end
        assert nodes.take(source) == ["ckpt/last: from gpu00 (0.0 MB)"]


def test_a_question_that_comes_a_byte_at_a_time_has_an_end(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "PROOF_TIMEOUT", 0.3)
    source = nodes.serve(0)
    with socket.create_connection(source.address, 30) as connection:
        connection.settimeout(0.02)
        assert connection.recv(1 << 10).endswith(b"\n")
        while True:
            connection.sendall(b" ")
            with contextlib.suppress(TimeoutError):
                assert connection.recv(1) == b""
                return


def test_what_changes_while_it_goes_is_not_taken(nodes: Nodes) -> None:
    nodes.write(0, b"as it was listed")
    nodes.write(9, b"mine")
    source = nodes.serve(0)
    nodes.serving[-1]._read_path(PATH)
    (nodes.workdir(0) / "ckpt/epoch_7/weights.bin").write_bytes(b"as it is by now!")
    (told,) = nodes.take(source)
    assert told.startswith("ckpt/last: could not be carried here: what was sent came damaged")
    assert read(nodes) == {"weights.bin": b"mine"}


def test_a_list_that_leads_elsewhere_is_none(nodes: Nodes) -> None:
    nodes.write(0, b"x")
    told = read_content(str(nodes.workdir(0)), PATH)
    assert told is not None
    assert decode_content(PATH, *encode_content(told)) == told
    assert decode_content(PATH, b"", b"") is None
    for path in ("../up", "/etc/passwd", "other", ".clusterddp-live/record.json"):
        wrong = PathContent([*told.entries, told.entries[0]._replace(path=path)], told.chunk_lists)
        with pytest.raises(ValueError, match=r"may not be synced|is not at ckpt/last"):
            decode_content(PATH, *encode_content(wrong))
    for data in (b"[", b'["x"]', b'[["ckpt", "file", false, 1, "x"]]'):
        with pytest.raises(ValueError, match=r"not a|not the|is not at"):
            decode_content(PATH, data, b"{}")


def test_a_link_to_another_disk_stays_and_its_folder_takes_what_is_carried(nodes: Nodes) -> None:
    nodes.write(1, b"new")
    (nodes.workdir(1) / "ckpt/last").unlink()
    (nodes.workdir(1) / "ckpt/epoch_7").rename(nodes.workdir(1) / "ckpt/last")
    scratch = nodes.folder / "scratch/checkpoints"
    scratch.mkdir(parents=True)
    (scratch / "weights.bin").write_bytes(b"old")
    (nodes.workdir(9) / "ckpt").mkdir()
    (nodes.workdir(9) / PATH).symlink_to(scratch)  # as clusterddp_links makes it
    assert nodes.take(nodes.serve(1)) == [f"{PATH}: from gpu01 (0.0 MB)"]
    assert (nodes.workdir(9) / PATH).readlink() == scratch
    assert (scratch / "weights.bin").read_bytes() == b"new"
    assert sorted(path.name for path in scratch.parent.iterdir()) == ["checkpoints", "checkpoints.~1~"]
    assert [path.name for path in (nodes.workdir(9) / "ckpt").iterdir()] == ["last"]
    assert nodes.take(nodes.serve(1)) == [f"{PATH}: is here already"]


@pytest.mark.parametrize("folder", ["node9", "node9/ckpt"])
def test_a_link_to_a_folder_that_holds_the_path_never_has_that_replaced(nodes: Nodes, folder: str) -> None:
    nodes.write(1, b"new")
    (nodes.workdir(1) / "ckpt/last").unlink()
    (nodes.workdir(1) / "ckpt/epoch_7").rename(nodes.workdir(1) / "ckpt/last")
    (nodes.workdir(9) / "ckpt").mkdir()
    (nodes.workdir(9) / PATH).symlink_to(nodes.folder / folder)
    assert nodes.take(nodes.serve(1)) == [f"{PATH}: from gpu01 (0.0 MB)"]
    assert read(nodes) == {"weights.bin": b"new"}
    assert not (nodes.workdir(9) / PATH).is_symlink()
    assert sorted(path.name for path in nodes.folder.iterdir()) == ["node1", "node9"]


def test_a_folder_that_hosts_may_share_is_not_replaced_while_others_write_in_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = nodes.folder / "nfs/checkpoints"
    shared.mkdir(parents=True)
    (shared / "first.bin").write_bytes(b"1")
    for member in (1, 9):
        (nodes.workdir(member) / "ckpt").mkdir(parents=True)
        (nodes.workdir(member) / PATH).symlink_to(shared)
    serving = nodes.serve(1)
    assert nodes.take(serving) == [f"{PATH}: is here already"]
    (shared / "second.bin").write_bytes(b"2")  # gpu01 has read what is there, and reads it once an attempt
    monkeypatch.setattr(replicated_paths, "filesystem_type", lambda _: "nfs4")
    nodes.take(serving)
    assert sorted(path.name for path in shared.iterdir()) == ["first.bin", "second.bin"]
    assert [path.name for path in shared.parent.iterdir()] == ["checkpoints"]


def test_another_users_folder_in_a_sticky_one_cannot_be_replaced_so_the_link_is(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.write(1, b"new")
    (nodes.workdir(1) / "ckpt/last").unlink()
    (nodes.workdir(1) / "ckpt/epoch_7").rename(nodes.workdir(1) / "ckpt/last")
    scratch = nodes.folder / "scratch/checkpoints"
    scratch.mkdir(parents=True)
    scratch.parent.chmod(0o1777)
    (nodes.workdir(9) / "ckpt").mkdir()
    (nodes.workdir(9) / PATH).symlink_to(scratch)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert nodes.take(nodes.serve(1)) == [f"{PATH}: from gpu01 (0.0 MB)"]
    assert read(nodes) == {"weights.bin": b"new"}
    assert not (nodes.workdir(9) / PATH).is_symlink()
    assert not list(scratch.iterdir())


def test_a_link_beside_its_target_is_replaced_by_the_folder_that_is_carried(nodes: Nodes) -> None:
    nodes.write(1, b"new")
    (nodes.workdir(1) / "ckpt/last").unlink()
    (nodes.workdir(1) / "ckpt/epoch_7").rename(nodes.workdir(1) / "ckpt/last")
    nodes.write(9, b"old")
    assert nodes.take(nodes.serve(1)) == [f"{PATH}: from gpu01 (0.0 MB)"]
    assert (nodes.workdir(9) / "ckpt/epoch_7/weights.bin").read_bytes() == b"old"
    assert not (nodes.workdir(9) / PATH).is_symlink()
