"""Names of the folders beside a workdir, and of contents: what is one and what is not."""

from __future__ import annotations

import pytest

from clusterddp.remote.shared.wire.chunks import is_content, is_digest
from clusterddp.remote.shared.workdir.workdir_names import is_name, is_named

HEX = "0123456789ab"
DIGEST = "0f" * 32


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "x" * 64, "a..", "try-2"])
def test_a_name_of_a_folder(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "_", "a/b", "a~b", "a@b", "a b", "a\n", "\u00e9", "x" * 65])
def test_no_name_of_a_folder(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize(
    ("path", "beside"),
    [
        ("/w/p", False),
        ("/w/p@try", True),
        (f"/w/p@try~{HEX}", False),
        ("/w/p@", False),
        ("/w/pq", False),
        ("/w/q@try", False),
    ],
)
def test_what_lies_beside_a_workdir(path: str, *, beside: bool) -> None:
    assert is_named(path, "/w/p") == beside


def test_digests_and_contents() -> None:
    assert is_digest(DIGEST)
    assert is_content(DIGEST)
    assert is_content(f"{DIGEST}-2")
    for text in ("", DIGEST[:-1], DIGEST + "0", DIGEST.upper(), DIGEST[:-1] + "\n", f"{DIGEST}-2"):
        assert not is_digest(text)
    for text in (f"{DIGEST}-", f"{DIGEST}-0", f"{DIGEST}-01", f"{DIGEST}-2-2", f"{DIGEST}-1\n", f"{DIGEST}-{'1' * 11}"):
        assert not is_content(text)
