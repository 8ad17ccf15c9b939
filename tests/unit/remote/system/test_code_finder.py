"""A way to a folder that is proved while it is opened, and a file that only this user can have written."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from clusterddp.remote.system.code_finder import open_folder, open_private

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts are Linux")
OTHER = 4242  # another user
as_root = pytest.mark.skipif(os.getuid() != 0, reason="makes files of another user")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A file in a folder of ours."""
    (tmp_path / "helper").mkdir(mode=0o700)
    path = tmp_path / "helper" / "code.pyz"
    path.write_bytes(b"ours")
    path.chmod(0o600)
    return path


def read(folder: Path) -> bytes:
    handle, real = open_private(str(folder), "code.pyz")
    try:
        assert os.path.samestat(os.fstat(handle), os.stat(f"{real}/code.pyz"))  # noqa: PTH116 - as a helper does
        return os.read(handle, 100)
    finally:
        os.close(handle)


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as above


def test_a_file_of_ours_is_read_through_links_of_ours_or_roots(code: Path, tmp_path: Path) -> None:
    (tmp_path / "absolute").symlink_to(code.parent)
    (tmp_path / "relative").symlink_to("./absolute/../helper")
    before = descriptors()
    for folder in (code.parent, tmp_path / "absolute", tmp_path / "relative"):
        assert read(folder) == b"ours"
    assert descriptors() == before


def give(path: Path) -> None:
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


# What may have been done to a file or its folder, so that somebody else may have written it.
DONE: dict[str, Callable[[Path], object]] = {
    "the file can be written by the group": lambda path: path.chmod(0o620),
    "the file can be written by all": lambda path: path.chmod(0o602),
    "the folder can be read by all": lambda path: path.parent.chmod(0o705),
    "the folder can be written by the group": lambda path: path.parent.chmod(0o720),
    "a folder above can be written by all": lambda path: path.parents[1].chmod(0o777),
    "a pipe": lambda path: replace(path, os.mkfifo),
    "a link": lambda path: replace(path, lambda gone: gone.symlink_to("/etc/hostname")),
    "a folder": lambda path: replace(path, lambda gone: gone.mkdir()),
    "the terminal": lambda path: replace(path, lambda gone: gone.symlink_to("/dev/tty")),
}
GIVEN: dict[str, Callable[[Path], object]] = {
    "another's file": give,
    "another's folder": lambda path: give(path.parent),
    "another's folder above": lambda path: give(path.parents[1]),
}


@pytest.mark.parametrize("done", DONE)
def test_what_others_may_have_written_is_not_read(code: Path, done: str) -> None:
    DONE[done](code)
    before = descriptors()
    with pytest.raises(OSError, match=r"written by|symbolic links"):
        read(code.parent)
    assert descriptors() == before


@as_root
@pytest.mark.parametrize("done", GIVEN)
def test_what_is_another_users_is_not_read(code: Path, done: str) -> None:
    GIVEN[done](code)
    with pytest.raises(OSError, match=r"another user"):
        read(code.parent)


@as_root
def test_a_link_of_another_user_is_not_followed_wherever_it_leads(code: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(code.parent)
    give(tmp_path / "link")
    with pytest.raises(OSError, match="is another user's link"):
        read(tmp_path / "link")


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        open_folder(str(tmp_path / "a"))


def test_a_file_that_is_replaced_while_it_is_read_stays_the_one_that_was_opened(code: Path) -> None:
    handle, _ = open_private(str(code.parent), code.name)
    other = code.with_name("other")
    other.write_bytes(b"theirs")
    other.rename(code)
    assert os.pread(handle, 100, 0) == b"ours"
    os.close(handle)


@as_root
def test_a_link_that_flips_leads_to_ours_or_nowhere(code: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    (theirs / "code.pyz").write_bytes(b"theirs")
    give(theirs)
    give(theirs / "code.pyz")
    links = [tmp_path / "link", tmp_path / "other"]
    links[0].symlink_to(code.parent)
    links[1].symlink_to(theirs)
    over = threading.Event()

    def flip() -> None:
        while not over.is_set():
            for first, second in (links, links[::-1]):
                os.link(first, tmp_path / "next", follow_symlinks=False)
                second.rename(tmp_path / "last")
                (tmp_path / "next").rename(second)
                first.unlink()
                (tmp_path / "last").rename(first)

    thread = threading.Thread(target=flip)
    thread.start()
    found: set[object] = set()
    try:
        while len(found) < 2:
            try:
                found.add(read(tmp_path / "link"))
            except OSError as error:
                found.add(type(error))
    finally:
        over.set()
        thread.join()
    assert b"theirs" not in found
