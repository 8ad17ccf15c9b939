"""Whose word counts where hosts say that they share a folder, and the room for what comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import SyncError
from clusterddp.remote.shared.wire.chunks import digest_of
from clusterddp.remote.shared.workdir.manifest import FILE, Entry
from clusterddp.sync.transfer import local_files
from clusterddp.sync.transfer.collect import Origin, _deduplicate, _plan_paths, _Tally, collect
from clusterddp.sync.transfer.fetch import Listing
from clusterddp.sync.transfer.progress_rate import Transfer
from tests.unit.sync_help import FakeHost, write

if TYPE_CHECKING:
    from pathlib import Path


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
        collect([origin], lambda _: (tmp_path / "here", ""), Transfer("pulling", lambda _: None))
    assert host.calls == ["pull_list"]





def test_of_a_single_file_its_name_is_told_and_not_its_folder_alone(tmp_path: Path) -> None:
    host: Any = FakeHost(tmp_path)
    write(host.workdir, **{"ckpt/last.pt": "x"})
    write(tmp_path, **{"here/best.pt": "x"})
    origin = Origin(host=host, workdir=str(host.workdir), path="ckpt/last.pt")
    done = collect([origin], lambda _: (tmp_path / "here", "best.pt"), Transfer("pulling", lambda _: None))
    assert (done.folder / done.name, done.same) == (tmp_path / "here/best.pt", 1)
