"""Whatever a TOML file holds, it is read or refused with a reason, and soon."""

from __future__ import annotations

import pytest

from clusterddp.project.toml_text import parse_toml

LONG = ".".join("a" * 200)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = " + "[" * 20_000, "it is nested too deep"),
        ("x = 1\n" + ".".join("a" * 20_000) + " = 1", r"a key has over 128 parts \(at line 2\)"),
        (f"[{LONG}]", r"a key has over 128 parts \(at line 1\)"),
        (f"x = {{{LONG} = 1}}", r"a key has over 128 parts \(at line 1\)"),
        (f"x = [1,\n{{y = 1, {LONG} = 1}}]", r"a key has over 128 parts \(at line 2\)"),
        (f"""'"=' . '#'.{LONG} = "a"\n""", r"a key has over 128 parts \(at line 1\)"),
        (f'x = {{y = """\n\'"""", {LONG} = 1, z = "\'"}}', r"a key has over 128 parts \(at line 2\)"),
        ("a = ", "Invalid value"),
    ],
    ids=[
        "depth",
        "a dotted key",
        "a table's name",
        "in a table of one line",
        "in a list",
        "quotes",
        "quotes of many lines",
        "no TOML",
    ],
)
def test_what_is_no_document_or_takes_too_long_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_toml(text)


def test_a_value_may_have_any_number_of_dots() -> None:
    assert parse_toml(f'[tool.x]\na.b = "{"." * 500}"') == {"tool": {"x": {"a": {"b": "." * 500}}}}
    assert parse_toml(f"x = {[0.5] * 500}  # {LONG}") == {"x": [0.5] * 500}
    assert parse_toml(f'x = """\n\\"""{LONG}"""""\ny = """" {LONG}"""')["y"] == f'" {LONG}'
