from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusterddp.remote.shared.workdir import manifest
from clusterddp.remote.shared.workdir.manifest import BadManifest, Entry
from clusterddp.remote.shared.workdir.manifest_difference import (
    apply_difference,
    difference,
    dropped_lines,
    lines_of,
    pieces_of,
)

PATHS = st.one_of(st.sampled_from([f"pkg{n}/m{m}.py" for n in range(3) for m in range(4)]), st.text(min_size=1))
CONTENTS = st.sampled_from(["a" * 64, "b" * 64, "c" * 64])
TREES = st.dictionaries(PATHS, st.tuples(CONTENTS, st.booleans()), max_size=12)


def encoded(tree: dict[str, tuple[str, bool]]) -> bytes:
    found = []
    for path, (content, executable) in tree.items():
        with contextlib.suppress(BadManifest, UnicodeEncodeError):
            found.append(Entry(manifest.checked_path(path), manifest.FILE, executable, 1, content))
    return manifest.encode(found)


@given(TREES, TREES)
def test_the_difference_of_any_two_trees_makes_the_one_of_the_other(
    before: dict[str, tuple[str, bool]], after: dict[str, tuple[str, bool]]
) -> None:
    for new in (after, {**before, **after}, {}):
        old, wanted = encoded(before), encoded(new)
        told = difference(old, wanted)
        assert apply_difference(old, told) == wanted
        assert len(told) <= len(wanted)
        pieces = pieces_of(told, len(lines_of(old)))
        gone = [lines_of(old)[number] for number in dropped_lines(len(lines_of(old)), pieces)]
        assert gone == [line for line in lines_of(old) if line not in lines_of(wanted)]


def test_one_change_among_many_files_is_told_in_three_lines() -> None:
    tree = {f"m{number:05}": ("a" * 64, False) for number in range(1000)}
    told = difference(encoded(tree), encoded({**tree, "m00500": ("b" * 64, False)}))
    assert told.splitlines()[0::2] == [b"=0,500", b"=501,1000"]
    assert apply_difference(b"", encoded(tree)) == encoded(tree)


@settings(max_examples=300)
@given(st.lists(st.one_of(st.binary(max_size=12), st.sampled_from([b"=0,1", b"=1,3", b"=-1,2", b"=3,3", b"=1,2,3"]))))
@example([b"=0,1", b"=0,1"])
def test_whatever_is_sent_as_a_difference_is_refused_or_no_longer_than_both(told: list[bytes]) -> None:
    old = b"a\nb\nc\n"
    sent = b"".join(line + b"\n" for line in told)
    try:
        made = apply_difference(old, sent)
    except BadManifest:
        return
    assert len(made) <= len(old) + len(sent)


def test_a_difference_that_goes_back_or_beyond_the_end_is_refused() -> None:
    for told in (b"=1,2\n=0,1\n", b"=0,4\n", b"=0,2\n=1,3\n"):
        with pytest.raises(BadManifest):
            apply_difference(b"a\nb\nc\n", told)
