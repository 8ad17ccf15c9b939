"""Names of the folders beside a workdir, and of contents: what is one and what is not."""

from __future__ import annotations

import pytest

from clusterddp.remote.shared.chunks import is_content, is_digest
from clusterddp.remote.shared.workdirs import ending, is_beside, is_name, is_sibling

HEX = "0123456789ab"
DIGEST = "0f" * 32


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "x" * 64, "a..", "try-2"])
def test_a_name_of_a_folder(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "_", "a/b", "a~b", "a@b", "a b", "a\n", "\u00e9", "x" * 65])
def test_no_name_of_a_folder(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize(
    ("path", "beside", "sibling"),
    [
        ("/w/p", False, False),
        (f"/w/p~{HEX}", True, True),
        (f"/w/p~{HEX.upper()}", False, False),
        (f"/w/p~{HEX}0", False, False),
        (f"/w/p~{HEX[1:]}", False, False),
        (f"/w/p~{HEX}\n", False, False),
        ("/w/p@try", True, False),
        (f"/w/p@try~{HEX}", True, False),
        (f"/w/p@~{HEX}", False, False),
        ("/w/p@try~", False, False),
        ("/w/p@", False, False),
        ("/w/pq", False, False),
        (f"/w/q~{HEX}", False, False),
    ],
)
def test_what_lies_beside_a_workdir(path: str, *, beside: bool, sibling: bool) -> None:
    assert (is_beside(path, "/w/p"), is_sibling(path, "/w/p")) == (beside, sibling)


def test_the_ending_of_a_runs_folder() -> None:
    assert ending("/w/p", "") == ""
    assert ending("/w/p@try", "try") == "@try"
    assert ending(f"/w/p@try~{HEX}", "try") == f"@try~{HEX}"
    assert ending(f"/w/p~{HEX}", "") == f"~{HEX}"


def test_digests_and_contents() -> None:
    assert is_digest(DIGEST)
    assert is_content(DIGEST)
    assert is_content(f"{DIGEST}-2")
    for text in ("", DIGEST[:-1], DIGEST + "0", DIGEST.upper(), DIGEST[:-1] + "\n", f"{DIGEST}-2"):
        assert not is_digest(text)
    for text in (f"{DIGEST}-", f"{DIGEST}-0", f"{DIGEST}-01", f"{DIGEST}-2-2", f"{DIGEST}-1\n", f"{DIGEST}-{'1' * 11}"):
        assert not is_content(text)
