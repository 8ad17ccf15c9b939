"""A bundle's archive: what is packed is read back, by tar too; what is not plain is refused, at a bounded cost."""

from __future__ import annotations

import gzip
import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.shared.bundle import archive
from clusterddp.remote.shared.bundle.archive import MAX_MEMBER, MAX_MEMBERS, Member, pack, unpack
from clusterddp.remote.shared.schema.fields import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MEMBERS = [
    Member("top/README.txt", b"what is here\n"),
    Member("top/hosts/gpu00/outputs/start-0/rank0-0.err", b"x" * 1500),
    Member("top/empty", b""),
]


def test_what_is_packed_is_read_back() -> None:
    assert unpack(pack(MEMBERS, 7)) == MEMBERS
    assert unpack(pack([], 7)) == []


def test_tar_unpacks_it_private(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(pack(MEMBERS, 7))) as packed:
        packed.extractall(tmp_path, filter="data")
    for name, body in MEMBERS:
        assert (tmp_path / name).read_bytes() == body
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../x", "a//x", "", "a/", ".ssh/x", "a\nb", "é", "a\x1b[2J"])
def test_a_name_that_leads_elsewhere_or_shows_otherwise_is_neither_packed_nor_read(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a member's name"):
        pack([Member(name, b"")], 0)
    with pytest.raises(DamagedError, match=r"member named|no plain file"):
        unpack(made(lambda tar: add(tar, name)))


def add(packed: tarfile.TarFile, name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> None:
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, target
    packed.addfile(header)


def made(fill: Callable[[tarfile.TarFile], None]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.USTAR_FORMAT) as packed:
        fill(packed)
    return out.getvalue()


KINDS = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME]


@pytest.mark.parametrize("kind", KINDS)
def test_links_devices_and_extensions_are_refused(kind: bytes) -> None:
    with pytest.raises(DamagedError, match="no plain file"):
        unpack(made(lambda tar: add(tar, "why.json", kind, "/etc/passwd")))


def test_an_archive_that_was_packed_again_by_hand_is_read(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "why.json").write_text("{}")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=tarfile.GNU_FORMAT) as packed:
        packed.add(tmp_path / "top", "./top")
    assert unpack(out.getvalue()) == [Member("top/why.json", b"{}")]


WHOLE = pack(MEMBERS, 7)
PLAIN = gzip.decompress(WHOLE)
BROKEN = {
    "nothing": (b"", "no gzip archive"),
    "a text": (b"Traceback (most recent call last):", "no gzip archive"),
    "its end is missing": (WHOLE[:-20], "it was cut"),
    "its tar was cut": (gzip.compress(PLAIN[:1100]), "it was cut"),
    "a bit has changed": (WHOLE[:60] + bytes([WHOLE[60] ^ 4]) + WHOLE[61:], "it was changed"),
    "something follows": (WHOLE + b"more", "more behind its end"),
    "no tar": (gzip.compress(b"x" * 2048), "holds no tar archive"),
    "twice": (pack([MEMBERS[0], MEMBERS[0]], 7), "twice"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_one_error(name: str) -> None:
    data, message = BROKEN[name]
    with pytest.raises(DamagedError, match=message):
        unpack(data)


def test_what_would_take_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    header = tarfile.TarInfo("large")
    header.size = MAX_MEMBER + 1
    with pytest.raises(DamagedError, match="larger than 16 MiB"):
        unpack(gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + bytes(1024)))
    header.size = -1
    with pytest.raises(DamagedError, match="larger than 16 MiB"):
        unpack(gzip.compress(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024)))
    with pytest.raises(DamagedError, match="unpack to more than 1 MiB"):
        unpack(gzip.compress(bytes(2 << 20)), 1 << 20)
    monkeypatch.setattr(archive, "MAX_MEMBERS", 2)
    with pytest.raises(DamagedError, match="too many members"):
        unpack(WHOLE)
    assert MAX_MEMBERS > 10_000
