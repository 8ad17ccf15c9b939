"""Host names in the order of people, whatever hosts tell."""

from __future__ import annotations

from clusterddp.remote.shared.names.host_names import sorted_names


def test_names_are_ordered_by_their_numbers_however_long_those_are() -> None:
    long = "gpu" + "1" * 5000
    assert sorted_names(["gpu10", long, "gpu9"]) == ["gpu9", "gpu10", long]
