"""A folder's files are proved by stats where these are as known, else by their bytes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from clusterddp.remote.shared.wire.chunks import digest_of
from clusterddp.remote.shared.workdir.manifest import FILE, RACY_INTERVAL, Entry, encode
from clusterddp.remote.shared.workdir.manifest_difference import lines_of
from clusterddp.remote.workdir.stat_cache import pack_stats
from clusterddp.remote.workdir.verify import VerifiedFiles, prove

if TYPE_CHECKING:
    from pathlib import Path

TEXT = b"put"


def proved(root: Path, known: bytes) -> VerifiedFiles:
    manifest = encode([Entry("a", FILE, executable=False, size=len(TEXT), content=digest_of(TEXT))])
    return prove(os.fsencode(root), lambda: lines_of(manifest), [b"a"], [known], time.time_ns() + 2 * RACY_INTERVAL)


def test_a_file_renamed_to_its_place_is_known_by_all_but_its_ctime(tmp_path: Path) -> None:
    (tmp_path / "written").write_bytes(TEXT)
    info = (tmp_path / "written").stat()
    (tmp_path / "written").rename(tmp_path / "a")
    known = pack_stats(info.st_size, info.st_mtime_ns, 0, info.st_ino)
    proof = proved(tmp_path, known)
    assert (proof.read, proof.differs) == (0, {})
    ctime = (tmp_path / "a").stat().st_ctime_ns
    assert proof.stats == [pack_stats(info.st_size, info.st_mtime_ns, ctime, info.st_ino)]
    (tmp_path / "a").write_bytes(b"own")
    os.utime(tmp_path / "a", ns=(0, info.st_mtime_ns + 1))
    assert list(proved(tmp_path, known).differs) == [0]
    (tmp_path / "b").write_bytes(TEXT)
    (tmp_path / "b").replace(tmp_path / "a")
    proof = proved(tmp_path, known)
    assert (proof.read, proof.differs) == (1, {})


def test_a_ctime_that_is_known_has_to_be_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    info = (tmp_path / "a").stat()
    known = pack_stats(info.st_size, info.st_mtime_ns, info.st_ctime_ns - 1, info.st_ino)
    assert proved(tmp_path, known).read == 1
