from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from clusterddp.errors import HelperError
from clusterddp.remote.helper import request
from clusterddp.remote.shared.wire.chunk_stream import bundles_of
from clusterddp.remote.shared.wire.chunks import digest_of
from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.system.bootstrap import Refused, write_private
from clusterddp.remote.workdir import folder_lock, run_markers, sync_record
from clusterddp.remote.workdir.live_runs import live_runs
from clusterddp.remote.workdir.update import WorkdirUpdate
from clusterddp.sync.transfer.upload import Uploads
from tests.lab.system import wait_until
from tests.unit.sync_help import Cut, FakeHost, content, cut_after, push, tree_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    write(folder, **{"train.py": "print(1)", "pkg/__init__.py": "", "pkg/model.py": "A = 1", "conf/a.yaml": "lr: 1"})
    return folder


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.mark.parametrize("step", range(18))
def test_a_cut_leaves_each_file_old_or_new_and_the_next_sync_mends_it(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    push(root, host)
    write(host.workdir, **{"snapshot.pt": "epoch 1"})
    old = content(host.workdir)
    write(root, **{"train.py": "print(2)", "pkg/model.py": "A = 2", "new/deep.py": "x"})
    (root / "conf/a.yaml").unlink()
    new = {**content(root), "snapshot.pt": "epoch 1"}
    counted = cut_after(step)
    with monkeypatch.context() as patch:
        cutting = {name: counted(getattr(os, name)) for name in ("rename", "unlink", "mkdir", "rmdir")}
        for module in ("workdir.update", "transfer.chunk_files"):
            patch.setattr(f"clusterddp.remote.{module}.os", SimpleNamespace(**{**vars(os), **cutting}))
        patch.setattr("clusterddp.remote.workdir.sync_record.write_private", counted(write_private))
        with contextlib.suppress(Cut):
            push(root, host)
    for path, text in content(host.workdir).items():
        assert path.startswith(".clusterddp-") or text in (old.get(path), new.get(path))
    result = push(root, host)
    assert content(host.workdir) == new
    assert result.notices == ()


def test_what_is_edited_while_a_sync_runs_is_never_lost(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(root, host)
    write(root, **{"train.py": "print(2)", "fresh.py": "new"})
    (root / "conf/a.yaml").unlink()
    (root / "pkg/model.py").unlink()

    def edited_then_committed(update: WorkdirUpdate) -> None:
        write(host.workdir, **{"train.py": "print('mine')", "conf/a.yaml": "lr: mine", "fresh.py": "mine"})
        commit(update)

    commit = WorkdirUpdate.commit
    monkeypatch.setattr(WorkdirUpdate, "commit", edited_then_committed)
    push(root, host)
    assert content(host.workdir) == {
        "train.py": "print(2)",
        "train.py.clusterddp-kept-1": "print('mine')",
        "fresh.py": "new",
        "fresh.py.clusterddp-kept-1": "mine",
        "conf/a.yaml": "lr: mine",
        "pkg/__init__.py": "",
    }


def test_the_lock_is_renewed_while_contents_are_waited_for(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request, "WAIT_INTERVAL", 10)
    monkeypatch.setattr(folder_lock, "HEARTBEAT_INTERVAL", 0.0)
    pieces, beats = Uploads.pieces, set[int]()

    def slow(uploads: Uploads, *args: Any, **options: Any) -> Iterator[Any]:
        head, *rest = pieces(uploads, *args, **options)
        yield head
        for _ in range(2):
            wait_until("the lock is renewed", lambda: not beats.issuperset(beat()))
            beats.update(beat())
        yield from rest

    def beat() -> list[int]:
        return [path.stat().st_mtime_ns for path in (host.workdir / ".clusterddp-live").glob("lock.held.*")]

    monkeypatch.setattr(Uploads, "pieces", slow)
    push(root, host)
    assert len(beats) > 1


def test_a_sync_of_other_code_is_refused_while_a_run_is_live_there(root: Path, host: FakeHost) -> None:
    push(root, host)
    write(host.workdir, **{"snapshot.pt": "epoch 1", "out/log": "x"})
    write(root, **{"train.py": "print(2)"})
    (root / "conf/a.yaml").unlink()
    with host.live_run("r1", host.workdir):
        before = content(host.workdir)
        with pytest.raises(HelperError, match=f"run r1 is live in {host.workdir} with other code") as refused:
            push(root, host)
        assert content(host.workdir) == before
    assert refused.value.remedy
    for way in ("--workdir NAME", "wait", "clusterddp stop r1"):
        assert way in refused.value.remedy
    push(root, host)
    assert content(host.workdir) == {**content(root), "snapshot.pt": "epoch 1", "out/log": "x"}


def test_a_live_run_with_the_same_code_shares_the_workdir(root: Path, host: FakeHost) -> None:
    push(root, host)
    with host.live_run("r1", host.workdir):
        result = push(root, host).hosts[0]
        assert result.workdir == str(host.workdir)
        assert result.notices == (
            f"run r1 is live in {host.workdir} too: both write there; --workdir fresh gives a run a folder of its own",
        )


def test_code_changed_on_the_host_under_a_live_run_stays_and_a_sync_is_refused(root: Path, host: FakeHost) -> None:
    push(root, host)
    with host.live_run("r1", host.workdir):
        write(host.workdir, **{"train.py": "print('mine')"})
        with pytest.raises(HelperError, match="run r1 is live"):
            push(root, host)
        assert content(host.workdir)["train.py"] == "print('mine')"


def test_a_start_is_refused_when_another_sync_came_in_between(
    root: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[bytes] = []
    monkeypatch.setattr(run_markers, "start_heartbeat", lambda _, marker, __: kept.append(marker))
    ours = push(root, host).hosts[0]
    spool: Any = SimpleNamespace(run="r1", host="gpu01", supervisor=os.getpid)
    run_markers.protect(spool, str(host.state), ours.workdir, ours.digest)
    assert live_runs(str(host.state), os.fsencode(ours.workdir)) == [("r1", "gpu01")]
    Path(os.fsdecode(kept[0])).unlink()
    write(root, **{"train.py": "print(2)"})
    push(root, host)
    with pytest.raises(Refused, match="another sync has changed"):
        run_markers.protect(spool, str(host.state), ours.workdir, ours.digest)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a\0b", "", ".clusterddp/x", "\ud800"]
)
def test_hostile_paths_are_refused(root: Path, host: FakeHost, path: str) -> None:
    tree = tree_of(root)
    entries = tuple(replace_path(entry, path) if entry.path == "train.py" else entry for entry in tree.entries)
    with pytest.raises((HelperError, UnicodeEncodeError)):
        hostile(host, entries)
    assert content(host.workdir) == {}
    push(root, host)
    with pytest.raises((HelperError, UnicodeEncodeError), match=r"may not be synced|surrogates|cannot be on a disk"):
        hostile_change(host, replace_path(tree.entries[0], path))
    assert content(host.workdir) == content(root)


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "", ".."])
def test_hostile_links_are_refused(root: Path, host: FakeHost, target: str) -> None:
    (root / "link").symlink_to("train.py")
    entries = tuple(
        entry._replace(content=target) if entry.kind == "link" else entry for entry in tree_of(root).entries
    )
    with pytest.raises(HelperError, match="leads out of the folder"):
        hostile(host, entries)
    push(root, host)
    with pytest.raises(HelperError, match="leads out of the folder"):
        hostile_change(host, manifest.link_entry("another", target))
    assert content(host.workdir) == content(root)


@pytest.mark.parametrize("path", ["train.py", "train.py/x", "pkg"])
def test_what_cannot_lie_beside_the_code_that_is_there_is_refused(root: Path, host: FakeHost, path: str) -> None:
    push(root, host)
    with pytest.raises(HelperError, match=r"stands twice|is a file and a folder"):
        hostile_change(host, replace_path(tree_of(root).entries[0], path))
    assert content(host.workdir) == content(root)


@pytest.mark.parametrize(
    "told", [b"=0,9\n", b"=1,0\n", b"=x\n", b"=2,3\n=0,1\n", b"=0,1\n=0,1\n", b"\xff\n", b"[\n", b"7\n"]
)
def test_a_difference_from_no_manifest_of_the_host_is_refused(root: Path, host: FakeHost, told: bytes) -> None:
    push(root, host)
    (base,) = json.loads((host.workdir / ".clusterddp-live/synced.json").read_bytes())["manifests"]
    with pytest.raises(HelperError, match=r"not a difference|came damaged|not an entry|not a manifest"):
        send(host, told, digest_of(told), base=base)
    assert content(host.workdir) == content(root)


def replace_path(entry: Any, path: str) -> Any:
    return entry._replace(path=path)


def hostile(host: FakeHost, entries: tuple[Any, ...]) -> None:
    """Send entries to a host that nothing was sent to."""
    lines = b"".join(manifest.encode([entry]) for entry in entries)
    send(host, lines, digest_of(lines))


def hostile_change(host: FakeHost, entry: Any) -> None:
    """Send an entry as what is new since the code that the host has."""
    (base,) = json.loads((host.workdir / ".clusterddp-live/synced.json").read_bytes())["manifests"]
    lines = (host.workdir / f".clusterddp-live/manifest.{base}").read_bytes()
    new = manifest.encode([entry])
    send(host, b"=0,%d\n" % lines.count(b"\n") + new, digest_of(lines + new), base=base)


def send(host: FakeHost, told: bytes, digest: str, base: str = "") -> None:
    args = {"workdir": str(host.workdir), "digest": digest, "manifest": len(told), "chunk_lists": 2, "base": base}
    host.upload("sync_apply", args, bundles_of(told + b"{}", compress=False))


@pytest.mark.parametrize("place", ["/", "~/", "relative/path", "~bob/x"])
def test_a_workdir_that_is_no_folder_of_its_own_is_refused(root: Path, host: FakeHost, place: str) -> None:
    host.entry.workdir = place
    with pytest.raises(HelperError, match="clusterddp_workdir"):
        push(root, host)


def test_a_workdir_in_the_state_folder_or_on_a_file_is_refused(root: Path, host: FakeHost) -> None:
    host.entry.workdir = str(host.state / "x")
    with pytest.raises(HelperError, match="cannot be a workdir"):
        push(root, host)
    (host.place / "file").write_text("")
    host.entry.workdir = str(host.place / "file")
    with pytest.raises(HelperError, match="is not a folder"):
        push(root, host)


def test_a_workdir_removed_by_hand_is_made_again(root: Path, host: FakeHost) -> None:
    push(root, host)
    subprocess.run(["rm", "-rf", str(host.workdir)], check=True)
    push(root, host)
    assert content(host.workdir) == content(root)


def test_an_upload_cut_short_is_refused(root: Path, host: FakeHost) -> None:
    tree = tree_of(root)
    args = {"workdir": str(host.workdir), "digest": tree.digest, "manifest": 10**6, "chunk_lists": 2}
    with pytest.raises(HelperError, match="cut short"):
        host.upload("sync_apply", args, [b"[]"])


def test_what_somebody_changed_since_a_sync_is_told_until_the_next(root: Path, host: FakeHost) -> None:
    def changed() -> list[str]:
        return sync_record.changed_files(str(host.state), str(host.workdir))

    assert changed() == []  # nothing was ever synced
    push(root, host)
    write(host.workdir, **{"snapshot.pt": "epoch 1"})
    assert changed() == []
    write(host.workdir, **{"train.py": "print(2)"})
    (host.workdir / "conf/a.yaml").unlink()
    assert sorted(changed()) == ["conf/a.yaml", "train.py"]
    push(root, host)
    assert changed() == []


DAMAGES = [
    b"", b"[", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"entries": 7}', b'{"entries": [[1]]}',
    b'{"entries": [["../../x", "file", false, 1, "a"]]}', b'{"entries": [["x", "link", false, 1, "/etc"]]}',
    b'{"digest": 7}', b'{"token": "../x"}', b'{"entries": {"a": 1}}', b'{"entries": null}',
    b'{"format": 2, "manifests": ["../../x"]}', b'{"format": 2, "manifests": [7], "digest": ""}',
    b'{"format": 2, "manifests": 7}', b'{"format": 3, "manifests": []}',
    b'{"format": 2, "manifests": [], "digest": "a"}',
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_says_nothing_so_nothing_is_removed(root: Path, host: FakeHost, damage: bytes) -> None:
    push(root, host)
    (host.workdir / ".clusterddp-live" / "synced.json").write_bytes(damage)
    (root / "conf/a.yaml").unlink()
    write(root, **{"train.py": "print(2)"})
    push(root, host)
    assert content(host.workdir) == {
        **content(root),
        "conf/a.yaml": "lr: 1",
        "train.py.clusterddp-kept-1": "print(1)",
    }


@pytest.mark.parametrize("damage", [b"", b"\xff", b"[]\n", b'["../x","file",false,1,"a"]\n', b"7\n", None])
def test_a_damaged_manifest_says_nothing_so_nothing_is_removed(
    root: Path, host: FakeHost, damage: bytes | None
) -> None:
    push(root, host)
    (place,) = (host.workdir / ".clusterddp-live").glob("manifest.*")
    place.unlink()
    if damage is not None:
        place.write_bytes(damage)
    for path in host.state.glob("workdirs/*"):
        path.unlink()
    (root / "conf/a.yaml").unlink()
    write(root, **{"train.py": "print(2)"})
    push(root, host)
    assert content(host.workdir) == {
        **content(root),
        "conf/a.yaml": "lr: 1",
        "train.py.clusterddp-kept-1": "print(1)",
    }


def test_where_the_manifest_is_damaged_the_next_sync_proves_the_code_and_writes_it_anew(
    root: Path, host: FakeHost
) -> None:
    def forget() -> None:
        for path in host.state.glob("workdirs/*"):
            path.unlink()

    push(root, host)
    (place,) = (host.workdir / ".clusterddp-live").glob("manifest.*")
    place.write_bytes(b"")
    forget()
    write(host.workdir, **{"train.py": "print('mine')"})
    push(root, host)
    mine = {"train.py.clusterddp-kept-1": "print('mine')"}
    assert content(host.workdir) == {**content(root), **mine}
    forget()
    write(root, **{"train.py": "print(2)"})
    assert push(root, host).notices == ()
    assert content(host.workdir) == {**content(root), **mine}
