"""Whatever a TOML file holds, it is read or refused with a reason, and soon."""

from __future__ import annotations

import pytest

from clusterddp.project.toml_text import parse_toml


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = " + "[" * 20_000, "it is nested too deep"),
        ("x = 1\n" + ".".join("a" * 20_000) + " = 1", r"a key has over 128 parts \(at line 2\)"),
        ("[" + ".".join("a" * 200) + "]", r"a key has over 128 parts \(at line 1\)"),
        ("a = ", "Invalid value"),
    ],
    ids=["depth", "a dotted key", "a table's name", "no TOML"],
)
def test_what_is_no_document_or_takes_too_long_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_toml(text)


def test_a_value_may_have_any_number_of_dots() -> None:
    assert parse_toml(f'[tool.x]\na.b = "{"." * 500}"') == {"tool": {"x": {"a": {"b": "." * 500}}}}
