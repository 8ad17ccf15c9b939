"""Short forms of lists and of long texts."""

from __future__ import annotations

import pytest

from clusterddp.inventory.patterns import select
from clusterddp.text.folding import columns, cut_in_the_middle, folded_names
from clusterddp.text.units import human_duration


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["gpu00", "gpu01", "gpu02"], "gpu[00:02]"),
        (["gpu8", "gpu9", "gpu10"], "gpu[8:10]"),
        (["gpu08", "gpu09", "gpu10", "login"], "gpu[08:10], login"),
        (["n1.lab", "n2.lab", "n3.lab", "n5.lab"], "n[1:3].lab, n5.lab"),
        (["gpu0", "gpu1"], "gpu0, gpu1"),
        (["gpu98", "gpu099", "gpu100"], "gpu98, gpu099, gpu100"),
        ([f"gpu{n:02}" for n in range(32)], "gpu[00:31]"),
        (["n08", "n09", "n010"], "n08, n09, n010"),
        (["desk", "attic"], "desk, attic"),
        (["10.0.0.1", "10.0.0.2", "10.0.0.3"], "10.0.0.[1:3]"),
        ([], ""),
    ],
)
def test_consecutive_names_are_folded_as_an_inventory_spells_them_and_limit_takes_them(
    names: list[str], folded: str
) -> None:
    assert folded_names(names) == folded
    others = ["x1", "x2"]
    if names:
        assert select(folded, [*names, *others], {"all": [*names, *others]}).hosts == tuple(names)
        assert select(f"all:!{folded.replace(', ', ':!')}", [*names, *others], {"all": [*names, *others]}).hosts == (
            "x1",
            "x2",
        )


def test_numbers_alone_are_folded_with_a_dash() -> None:
    assert folded_names(["0", "1", "2", "5"]) == "0-2, 5"


@pytest.mark.parametrize("text", ["train.py", "train.py --data /mnt/data --out last.pt", "日本語" * 10, "a\u0301" * 30])
def test_a_text_is_cut_in_its_middle_to_fit(text: str) -> None:
    for width in range(1, 60):
        cut = cut_in_the_middle(text, width)
        assert columns(cut) <= width
        assert cut == text or cut.count("…") == 1
    assert cut_in_the_middle("abcdefgh", 5) == "ab…gh"


@pytest.mark.parametrize(
    ("seconds", "word"),
    [(-1, "0s"), (0.4, "0s"), (59.6, "1m00s"), (184, "3m04s"), (7500, "2h05m"), (86_399, "23h59m"), (284_400, "3d07h")],
)
def test_a_duration_is_one_word(seconds: float, word: str) -> None:
    assert human_duration(seconds) == word
