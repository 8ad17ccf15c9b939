"""Slurm's lists of nodes, expanded as `scontrol show hostnames` does."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterddp.remote.shared.slurm.nodelist import expand_nodelist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01", "gpu01"),
        ("gpu[01-03,07],login1", "gpu01 gpu02 gpu03 gpu07 login1"),
        ("gpu[8-11]", "gpu8 gpu9 gpu10 gpu11"),
        ("gpu[08-11]", "gpu08 gpu09 gpu10 gpu11"),
        ("rack[1-2]node[1-2]", "rack1node1 rack1node2 rack2node1 rack2node2"),
        ("a-[1-2]-ib.lan", "a-1-ib.lan a-2-ib.lan"),
    ],
)
def test_names_come_in_the_order_of_the_list(text: str, names: str) -> None:
    assert " ".join(expand_nodelist(text)) == names


@pytest.mark.parametrize(
    "text", ["", "(null)", "a,", ",a", "a[", "a[]", "a[1-", "a[2-1]", "a]", "a[1-99999999]", "a[0-9999][0-9999]", "-a"]
)
def test_what_is_no_list_is_one_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no |more than"):
        expand_nodelist(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a" + "[1]" * 3000, id="brackets in a row"),
        pytest.param("a[" + "1-65000," * 9000 + "1]", id="ranges in a bracket"),
        pytest.param("a[1-65000]," * 9000 + "a", id="ranges in a list"),
        pytest.param("a[" + "0" * 100_000 + "-9999]", id="a wide number"),
    ],
)
def test_a_short_text_that_would_fill_the_memory_is_that_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no |more than"):
        expand_nodelist(text)


@given(st.text(alphabet="ab01-,[]() \x1b", max_size=40))
def test_any_text_is_a_list_or_that_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert expand_nodelist(text)
