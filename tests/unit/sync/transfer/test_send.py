"""Transfers in which hosts pass chunks on: real operations, each in a thread with real pipes, real TLS between them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import ClusterddpError, HelperError, SyncError, UnreachableError
from clusterddp.remote.shared.wire.frames import Frame
from clusterddp.remote.transfer import host_to_host as remote_spread
from clusterddp.remote.transfer import peers
from clusterddp.sync.chosen_files import ChosenFiles, read_sources
from clusterddp.sync.deliver import Delivered, deliver
from clusterddp.sync.transfer import between_hosts, schedule
from clusterddp.sync.transfer.progress_rate import Transfer
from clusterddp.sync.transfer.transfer_task import TransferOptions
from clusterddp.sync.transfer.upload import Files, Uploads
from tests.unit.sync_help import project_at
from tests.unit.thread_host import ThreadHost

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from clusterddp.hosts.outgoing import Outgoing
    from clusterddp.remote.shared.wire.transfer_frames import HostReady, JoinOrder

NAMES = ("gpu00", "gpu01", "gpu02")
SIZE = 10 << 20


class Member(peers.TransferPeers):
    """One that tests can reach, by its name in the transfer."""

    all: dict[str, Member]

    def __init__(self, own: JoinOrder, stored: Any) -> None:
        self.name = own.name
        self.gave: list[Any] = []
        super().__init__(own, lambda ranges: self.give(stored, ranges))
        self.all[self.name] = self

    def give(self, stored: Any, ranges: Any) -> Any:
        self.gave.append(ranges)
        return stored(ranges)


class Team:
    """Three hosts, and a file that they lack."""

    def __init__(self, place: Path) -> None:
        self.place, self.lines = place, list[str]()
        self.hosts = [ThreadHost.made(place, name) for name in NAMES]
        (place / "project").mkdir()
        self.data = place / "project" / "data"
        self.data.write_bytes(os.urandom(SIZE))

    def chosen(self) -> ChosenFiles:
        return read_sources(project_at(self.place / "project"), [str(self.data)], "data", lambda _: None)[1]

    def push(self, mode: str = "on", chosen: ChosenFiles | None = None) -> tuple[Delivered, ...]:
        chosen = chosen or self.chosen()
        files = Files(chosen.entries, chosen.chunks, lambda entry: chosen.local_paths[entry.path])
        transfer = Transfer("pushing", lambda _: None)
        done = deliver(
            self.hosts,  # type: ignore[arg-type]
            Uploads(chosen.entries, chosen.chunks, files),
            chosen.entries,
            folder="",
            workdir="/nowhere",
            transfer=transfer,
            spread=TransferOptions(mode=mode, notify=self.lines.append),
        )
        assert transfer.done <= transfer.total
        return done

    def equal(self, *names: str) -> bool:
        return all((self.place / name / "work" / "data").read_bytes() == self.data.read_bytes() for name in names)

    @property
    def sent(self) -> int:
        return sum(host.sent for host in self.hosts)


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    Member.all = {}
    monkeypatch.setattr(peers, "TransferPeers", Member)
    return Team(tmp_path)


def test_each_chunk_leaves_here_once_and_every_host_has_it(team: Team) -> None:
    done = team.push()
    assert [one.files for one in done] == [1, 1, 1]
    assert team.equal(*NAMES)
    assert SIZE <= team.sent < 1.1 * SIZE
    assert not team.lines
    assert all(member.port for member in Member.all.values())
    assert [one.files for one in team.push()] == [0, 0, 0]


def own_listeners() -> set[int]:
    """The ports at which this process listens."""
    listed = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    ports = {f"socket:[{line[9]}]": int(line[1].rpartition(":")[2], 16) for line in listed if line[3] == "0A"}
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(ports.get(str(descriptor.readlink()), 0))
    return found - {0}


def test_nothing_listens_when_it_is_over(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile: set[int] = set()

    def give(_: Member, stored: Any, ranges: Any) -> Any:
        meanwhile.update(own_listeners())
        return stored(ranges)

    monkeypatch.setattr(Member, "give", give)
    before = own_listeners()
    team.push()
    assert {member.port for member in Member.all.values()} <= meanwhile
    assert own_listeners() == before


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_where_it_saves_no_time_no_host_listens(team: Team, mode: str) -> None:
    team.push(mode)
    assert team.equal(*NAMES)
    assert not Member.all


def test_it_begins_in_the_middle_where_that_saves_time(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_MIN_MEASURED", 0.0)
    monkeypatch.setattr(schedule, "MIN_GAIN", 0.0)
    monkeypatch.setattr(between_hosts, "_WATCH_INTERVAL", 0.001)
    team.push("auto")
    assert team.equal(*NAMES)
    assert Member.all


def test_a_host_that_gives_wrong_bytes_spoils_nothing(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    def give(member: Member, stored: Any, ranges: Any) -> Any:
        chunks, read = stored(ranges)
        return chunks, (lambda digest: os.urandom(len(read(digest)))) if member.name == "h1" else read

    monkeypatch.setattr(Member, "give", give)
    team.push()
    assert team.equal(*NAMES)


def test_a_host_that_dies_in_the_middle_costs_the_others_nothing_and_the_next_push_goes_on(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ThreadHost.stream

    def stream(host: ThreadHost, op: str, args: Mapping[str, Any], outgoing: Outgoing, **_: Any) -> Generator[Frame]:
        with contextlib.closing(real(host, op, args, outgoing)) as frames:
            for frame in frames:
                yield frame
                if host.name == "gpu01" and "have" in frame.header and "h1" in Member.all:
                    Member.all["h1"].close()
                    raise UnreachableError("gpu01", "the connection was lost")

    monkeypatch.setattr(ThreadHost, "stream", stream)
    with pytest.raises(UnreachableError) as caught:
        team.push()
    assert caught.value.host == "gpu01"
    assert team.equal("gpu00", "gpu02")
    monkeypatch.undo()
    before = team.sent
    assert [one.files for one in team.push()] == [0, 1, 0]
    assert team.equal(*NAMES)
    assert team.sent - before < SIZE  # it had some


def test_a_host_that_reaches_no_other_gets_all_from_here_and_one_line_says_so(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Member.fetch

    def fetch(member: Member, *args: Any) -> Any:
        if member.name == "h2":
            raise ConnectionError("no route to host")
        return real(member, *args)

    monkeypatch.setattr(Member, "fetch", fetch)
    team.push()
    assert team.equal(*NAMES)
    assert team.lines == ["gpu02: reaches no other host from 127.0.0.1: it gets all from here"]


def test_a_host_without_tls_or_a_free_port_gets_all_from_here(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(own: JoinOrder, stored: Any) -> Member:
        if own.name == "h0":
            raise ValueError("no TLS")
        return Member(own, stored)

    monkeypatch.setattr(peers, "TransferPeers", made)
    team.push()
    assert team.equal(*NAMES)
    assert set(Member.all) == {"h1", "h2"}


@pytest.mark.parametrize(("mode", "giving"), [("auto", {"h0", "h2"}), ("on", {"h0", "h1", "h2"})])
def test_a_host_with_a_live_run_passes_on_only_when_told(
    team: Team, monkeypatch: pytest.MonkeyPatch, mode: str, giving: set[str]
) -> None:
    real = remote_spread._describe_host

    def about(state: str) -> HostReady:
        return real(state)._replace(live="gpu01" in state)

    monkeypatch.setattr(remote_spread, "_describe_host", about)
    monkeypatch.setattr(schedule, "_MIN_MEASURED", 0.0)
    monkeypatch.setattr(schedule, "MIN_GAIN", -1.0)
    monkeypatch.setattr(between_hosts, "_WATCH_INTERVAL", 0.001)
    team.push(mode)
    assert team.equal(*NAMES)
    assert {name for name, member in Member.all.items() if member.port} == giving


def test_a_file_that_changes_meanwhile_is_told_of_and_everything_ends(team: Team) -> None:
    chosen = team.chosen()
    team.data.write_bytes(os.urandom(SIZE))
    with pytest.raises(SyncError, match="data changed while it was sent"):
        team.push(chosen=chosen)
    team.push()
    assert team.equal(*NAMES)


@pytest.mark.parametrize(("where", "name"), [(Uploads, "bundle"), (schedule.Schedule, "replace_late")])
def test_a_bug_in_a_thread_that_sends_or_looks_is_raised_and_no_host_waits_for_ever(
    team: Team, monkeypatch: pytest.MonkeyPatch, where: type, name: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    if where is schedule.Schedule:  # nothing is sent either: only the watching thread can end it
        monkeypatch.setattr(where, "orders", lambda *_: [])
    monkeypatch.setattr(where, name, fails)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        team.push()


def test_a_host_that_refuses_is_told_of_and_the_others_have_all(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    work = team.place / "gpu01" / "work"
    real = ThreadHost.stream

    def stream(host: ThreadHost, op: str, args: Mapping[str, Any], outgoing: Outgoing, **_: Any) -> Generator[Frame]:
        if op == "push_apply" and host.name == "gpu01":
            work.mkdir()
            (work / "data").write_text("the user's own")
        yield from real(host, op, args, outgoing)

    monkeypatch.setattr(ThreadHost, "stream", stream)
    with pytest.raises(ClusterddpError, match="gpu01"):
        team.push()
    assert team.equal("gpu00", "gpu02")


def test_a_host_that_talks_nonsense_costs_itself_alone(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ThreadHost.stream

    def stream(host: ThreadHost, op: str, args: Mapping[str, Any], outgoing: Outgoing, **_: Any) -> Generator[Frame]:
        frames = real(host, op, args, outgoing)
        with contextlib.closing(frames):
            for frame in frames:
                if op == "push_apply" and host.name == "gpu01" and "have" in frame.header:
                    frame = Frame({**frame.header, "have": "everything"}, b"")  # noqa: PLW2901
                yield frame

    monkeypatch.setattr(ThreadHost, "stream", stream)
    with pytest.raises(HelperError, match="gpu01: its answer is damaged"):
        team.push()
    assert team.equal("gpu00", "gpu02")
