"""Whose word counts where hosts say that they share a folder, what is said of files that change or go, the room."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.cli.actions.pull_action import _ignore_advice, _notices
from clusterddp.errors import SyncError, UnreachableError
from clusterddp.remote.shared.wire.chunks import CHUNK, Chunk, chunk_spans, content_of, digest_of
from clusterddp.remote.shared.workdir.manifest import FILE, Entry
from clusterddp.sync.transfer import collect, local_files
from clusterddp.sync.transfer.collect import Origin, _deduplicate, _plan_paths, _Tally
from clusterddp.sync.transfer.fetch import Listing
from clusterddp.sync.transfer.progress_rate import Transfer
from tests.unit.sync_help import FakeHost, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from clusterddp.sync.transfer.collect import Pulled
    from clusterddp.sync.transfer.fetch import ChunkLocation

Files = dict[str, str]


def listing(shared: str | None, **files: str) -> Listing:
    entries = [Entry(name, FILE, False, len(text), digest_of(text.encode())) for name, text in files.items()]
    return Listing(
        exists=True, folder=True, root="/w", shared=shared, entries=tuple(entries), chunks={}, skipped=(), others=()
    )


def paths(found: dict[str, Listing]) -> dict[str, list[str]]:
    return {host: [entry.path for entry in one.entries] for host, one in found.items()}


def test_a_shared_folders_files_come_once_and_those_of_others_stay_their_own() -> None:
    found = {"gpu00": listing("w", a="1", b="2"), "gpu01": listing("w", a="1", b="2"), "gpu02": listing(None, a="3")}
    once, disputed = _deduplicate(found)
    assert (paths(once), disputed) == ({"gpu00": ["a", "b"], "gpu01": [], "gpu02": ["a"]}, set())


@pytest.mark.parametrize("chosen", ["gpu01/log", "gpu01", "gpu01/log/x", "liar"])
def test_a_path_in_the_folder_of_another_host_takes_no_file_from_it(chosen: str) -> None:
    liar = {"log": "own", chosen: "bad"}
    plan = _plan_paths({"liar": listing(None, **liar), "gpu01": listing(None, log="good", one="1")}, _Tally())
    texts = {path: entry.content for path, (entry, _) in plan.items()}
    assert texts.pop("gpu01/log") == digest_of(b"good")
    assert texts.pop("liar/log") == digest_of(b"own")
    assert texts == {f"liar/{chosen}": digest_of(b"bad"), "one": digest_of(b"1")}


def test_a_folder_of_a_hosts_name_stays_where_nothing_is_in_its_way() -> None:
    tally = _Tally()
    plan = _plan_paths({"gpu00": listing(None, log="0"), "gpu01": listing(None, **{"log": "1", "gpu00/x": "2"})}, tally)
    assert (sorted(plan), tally.differing) == (["gpu00/log", "gpu00/x", "gpu01/log"], {"log"})


def test_who_claims_anothers_folder_neither_hides_its_files_nor_puts_others_in_their_place() -> None:
    once, disputed = _deduplicate({"liar": listing("w", model="bad"), "gpu01": listing("w", model="good", log="x")})
    assert (paths(once), disputed) == ({"liar": [], "gpu01": ["log"]}, {"model"})


def test_the_room_for_equal_files_is_checked_before_any_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = FakeHost(tmp_path)
    write(host.workdir, **{f"out/{number}": "x" * 1000 for number in range(50)})
    monkeypatch.setattr(local_files, "free_bytes", lambda _: 40_000)
    origin = Origin(host=host, workdir=str(host.workdir), path="out")  # type: ignore[arg-type]
    with pytest.raises(SyncError, match=r"50 kB are to come to .*/here, where 40 kB are free"):
        collect.collect([origin], lambda _: (tmp_path / "here", ""), Transfer("pulling", lambda _: None))
    assert host.calls == ["pull_list"]


def test_of_a_single_file_its_name_is_told_and_not_its_folder_alone(tmp_path: Path) -> None:
    host: Any = FakeHost(tmp_path)
    write(host.workdir, **{"ckpt/last.pt": "x"})
    write(tmp_path, **{"here/best.pt": "x"})
    origin = Origin(host=host, workdir=str(host.workdir), path="ckpt/last.pt")
    done = collect.collect([origin], lambda _: (tmp_path / "here", "best.pt"), Transfer("pulling", lambda _: None))
    assert (done.folder / done.name, done.same) == (tmp_path / "here/best.pt", 1)


def test_files_that_stay_different_in_one_folder_are_each_hosts_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    texts = {"gpu00": "0", "gpu01": "1", "gpu02": "2"}
    hosts = Hosts(monkeypatch, lambda *_: None, **{host: {"log": text, "all": "x"} for host, text in texts.items()})
    monkeypatch.setattr(collect, "list_host", lambda host, *_: with_chunks(listing("image", **hosts.files[host.name])))
    pulled = hosts.pull(tmp_path)
    assert below(tmp_path) == {"all": "x", **{f"{host}/log": text for host, text in texts.items()}}
    assert (pulled.differing, pulled.changing) == (("log",), ())


@pytest.mark.parametrize("third", ["1", "2"])
def test_a_third_hosts_file_lies_where_theirs_lie_whose_folder_is_a_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, third: str
) -> None:
    texts = {"gpu00": "0", "gpu01": "1", "gpu02": third}
    hosts = Hosts(monkeypatch, lambda *_: None, **{host: {"log": text} for host, text in texts.items()})

    def list_log(host: Any, *_: object) -> Listing:
        return with_chunks(listing(None if host.name == "gpu02" else "image", **hosts.files[host.name]))

    monkeypatch.setattr(collect, "list_host", list_log)
    pulled = hosts.pull(tmp_path)
    assert below(tmp_path) == {f"{host}/log": text for host, text in texts.items()}
    assert (pulled.differing, pulled.changing) == (("log",), ())


def test_a_hosts_own_file_comes_though_others_share_one_that_grows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = ["0"]
    hosts = Hosts(monkeypatch, lambda *_: None, gpu00={}, gpu01={}, gpu02={"log": "own"})

    def list_log(host: Any, *_: object) -> Listing:
        log.append("x")
        own = host.name == "gpu02"
        return with_chunks(listing(None if own else "w", log="own" if own else "".join(log)))

    monkeypatch.setattr(collect, "list_host", list_log)
    assert (hosts.pull(tmp_path).changing, below(tmp_path)) == (("log",), {"log": "own"})


def test_a_shared_file_that_grows_at_each_look_is_no_hosts_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = ["0"]

    def list_log(*_: object) -> Listing:
        log.append("x")
        return with_chunks(listing("w", log="".join(log), all="x"))

    hosts = Hosts(monkeypatch, lambda *_: None, gpu00={"all": "x"}, gpu01={"all": "x"})
    monkeypatch.setattr(collect, "list_host", list_log)
    pulled = hosts.pull(tmp_path)
    assert (below(tmp_path), pulled.differing, pulled.changing) == ({"all": "x"}, (), ("log",))


@pytest.mark.parametrize(("why", "whole"), [("cannot be read (Permission denied)", False), ("a device", True)])
def test_all_is_here_unless_something_could_not_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str, *, whole: bool
) -> None:
    found = replace(listing(None), skipped=(("a", why),))
    monkeypatch.setattr(collect, "list_host", lambda *_: found)
    origin = Origin(host=SimpleNamespace(name="gpu00"), workdir="/w", path="x")  # type: ignore[arg-type]
    pulled = collect.collect([origin], lambda _: (tmp_path, ""), Transfer("pull", print))
    assert (pulled.whole, [*_notices(pulled)]) == (whole, [f"left out, {why}: gpu00:a"])


def test_the_rule_that_is_told_matches_what_was_pulled() -> None:
    (told,) = _ignore_advice(["lr[0.1]/a", "lr[0.1]/b"])
    assert told.endswith(r"add to its .gitignore: '/lr\[0.1]'")


class Hosts:
    """Hosts with files; ``happens`` is called before a host's chunks are read, and may change or lose them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Hosts, str], None], **files: Files) -> None:
        self.files, self.happens = files, happens
        monkeypatch.setattr(collect, "list_host", self._list)
        monkeypatch.setattr(collect, "fetch_chunks", self._fetch)

    def _list(self, host: Any, *_: str) -> Listing:
        return with_chunks(listing(None, **self.files[host.name]))

    def _fetch(self, host: Any, _root: str, wanted: Sequence[ChunkLocation], _count: object) -> Iterator[Any]:
        self.happens(self, host.name)
        have = {digest_of(text.encode()): text.encode() for text in self.files[host.name].values()}
        digests = [location.chunk.digest for location in wanted]
        yield from [(digest, have[digest]) for digest in digests if digest in have]

    def pull(self, folder: Path) -> Pulled:
        origins = [Origin(host=SimpleNamespace(name=name), workdir="/w", path="x") for name in self.files]  # type: ignore[arg-type]
        return collect.collect(origins, lambda _folder: (folder, ""), Transfer("pull", print))


def with_chunks(found: Listing) -> Listing:
    return replace(found, chunks={entry.content: [Chunk(entry.content, entry.size)] for entry in found.entries})


def below(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and ".clusterddp-parts" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def test_a_file_that_is_removed_while_it_is_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def remove(hosts: Hosts, host: str) -> None:
        if host == "gpu01":
            hosts.files[host].clear()

    hosts = Hosts(monkeypatch, remove, gpu00={"ck": "0"}, gpu01={"ck": "1"}, gpu02={"ck": "2"})
    pulled = hosts.pull(tmp_path)
    assert below(tmp_path) == {"gpu00/ck": "0", "gpu02/ck": "2"}
    assert (pulled.gone, pulled.changing, pulled.hosts) == (("gpu01/ck",), (), ("gpu00", "gpu02"))
    assert not replace(pulled, differing=()).whole
    assert "removed on its host while it was read: gpu01/ck" in _notices(pulled)


def test_a_removed_file_that_another_host_has_comes_from_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def remove(hosts: Hosts, host: str) -> None:
        if host == "gpu00":
            hosts.files[host].clear()

    pulled = Hosts(monkeypatch, remove, gpu00={"ck": "0"}, gpu01={"ck": "0"}).pull(tmp_path)
    assert (below(tmp_path), pulled.gone, pulled.whole) == ({"ck": "0"}, (), True)


def test_a_lost_host_is_no_source_and_what_it_had_is_not_taken_for_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lose(_hosts: Hosts, host: str) -> None:
        if host == "gpu01":
            raise UnreachableError(host, "the connection was lost")

    pulled = Hosts(monkeypatch, lose, gpu00={"ck": "0"}, gpu01={"ck": "1"}).pull(tmp_path)
    assert below(tmp_path) == {"gpu00/ck": "0"}  # once, and not as if all hosts had it
    assert (pulled.gone, pulled.hosts) == ((), ("gpu00",))
    assert [str(error) for error in pulled.errors] == ["gpu01: the connection was lost"]


def test_a_file_that_changes_once_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pulled = Hosts(monkeypatch, lambda hosts, host: hosts.files[host].update(ck="new"), gpu00={"ck": "old"}).pull(
        tmp_path
    )
    assert (below(tmp_path), pulled.gone, pulled.changing, pulled.whole) == ({"ck": "new"}, (), (), True)


@pytest.mark.parametrize("then", [{"ck": b"d" * CHUNK + b"e"}, {}])
@pytest.mark.parametrize("lost", [False, True])
def test_of_a_version_that_came_in_part_nothing_stays_unless_a_host_was_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: dict[str, bytes], *, lost: bool
) -> None:
    first = digest_of(b"a" * CHUNK)
    files = {"ck": b"a" * CHUNK + b"b"}

    def list_files(*_: object) -> Listing:
        chunks = {name: [Chunk(digest_of(part), len(part)) for part in parts(data)] for name, data in files.items()}
        contents = {name: content_of([chunk.digest for chunk in of_file]) for name, of_file in chunks.items()}
        entries = tuple(Entry(name, FILE, False, len(data), contents[name]) for name, data in files.items())
        return replace(listing(None), entries=entries, chunks={contents[name]: chunks[name] for name in files})

    def fetch(host: Any, _root: str, wanted: Sequence[ChunkLocation], _count: object) -> Iterator[Any]:
        if wanted[0].chunk.digest == first:
            yield first, b"a" * CHUNK
            if lost:
                raise UnreachableError(host.name, "the connection was lost")
            files.clear()
            files.update(then)
        else:
            yield from [(digest_of(part), part) for part in parts(files["ck"])]

    monkeypatch.setattr(collect, "list_host", list_files)
    monkeypatch.setattr(collect, "fetch_chunks", fetch)
    origin = Origin(host=SimpleNamespace(name="gpu00"), workdir="/w", path="x")  # type: ignore[arg-type]
    pulled = collect.collect([origin], lambda _: (tmp_path, ""), Transfer("pull", print))
    assert (len(pulled.errors), (tmp_path / ".clusterddp-parts").exists()) == (lost, lost)
    assert below(tmp_path) == ({} if lost else {name: data.decode() for name, data in then.items()})


def parts(data: bytes) -> list[bytes]:
    return [data[start : start + size] for start, size in chunk_spans(len(data))]


def test_files_that_differ_only_while_they_are_written_come_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def finish(hosts: Hosts, _host: str) -> None:
        for files in hosts.files.values():
            files.update(ck="final")

    pulled = Hosts(monkeypatch, finish, gpu00={"ck": "par"}, gpu01={"ck": "part"}).pull(tmp_path)
    assert (below(tmp_path), pulled.differing, pulled.whole) == ({"ck": "final"}, (), True)


def test_a_new_file_takes_no_place_of_one_that_differs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def change(hosts: Hosts, _host: str) -> None:
        hosts.files["gpu00"]["x"] = "new"
        hosts.files["gpu01"] = {"gpu00/x": "another"}

    Hosts(monkeypatch, change, gpu00={"x": "0"}, gpu01={"x": "1"}).pull(tmp_path)
    assert sorted(below(tmp_path).values()) == ["another", "new"]


def test_the_paths_done_are_not_put_together_for_each_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settled, calls = _Tally.settled, []

    def counted(tally: _Tally) -> set[str]:
        calls.append(tally)
        return settled.fget(tally)  # type: ignore[attr-defined, no-any-return]

    monkeypatch.setattr(_Tally, "settled", property(counted))
    files = {f"{number}": "same" for number in range(100)}
    write(tmp_path, **files)
    pulled = Hosts(monkeypatch, lambda *_: None, gpu00=files).pull(tmp_path)
    assert (pulled.same, len(calls) < 10) == (100, True)
