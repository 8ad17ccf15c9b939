"""What `discover` says of words that cannot be meant, before it listens to anybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.cli_help import folder, said

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]  # fixture

pytestmark = pytest.mark.usefixtures("folder")
GOOD = {"--id": "job7", "--rank": "1", "--world-size": "2"}

# (what is changed, what the line begins with, what it holds)
WRONG: list[tuple[dict[str, str], str, str]] = [
    ({"--id": "x" * 65}, "--id: xxxxxxxxxxxxxxxx… has 65 bytes", "64 are the most"),
    ({"--id": "ü" * 33}, "--id: üüüüüüüüüüüüüüüü… has 66 bytes", "64 are the most"),
    ({"--id": ""}, "--id: '' is no name", "job7"),
    ({"--id": "a\nb"}, "--id: 'a\\nb' is no name", "job7"),
    ({"--rank": "2"}, "--rank 2 of 2: no such rank", "they are 0 to 1"),
    ({"--rank": "-1"}, "--rank: '-1' is no number of at least 0", "--help"),
    ({"--rank": "one"}, "--rank: 'one' is no number", "--help"),
    ({"--world-size": "0"}, "--world-size: '0' is no number of at least 1", "--help"),
    ({"--world-size": "5000"}, "--world-size 5000: not 1 to 4096 machines", "count them"),
    ({"--timeout": "0"}, "--timeout 0: no time to meet in", "60s"),
    ({"--timeout": "soon"}, "--timeout: 'soon' is no duration", "5m"),
    ({"--port": "70000"}, "--port 70000: no TCP port", "1024 to 65535"),
    ({"--interface": "eth99"}, "--interface eth99: no such interface is up", "up are lo (127.0.0.1)"),
    ({"--interface": "10.99.99.99"}, "--interface 10.99.99.99: no such interface is up", "lo (127.0.0.1)"),
    ({"--key-file": "none"}, "--key-file none: No such file or directory", "holds the key"),
    ({"--key-file": "."}, "--key-file .: Is a directory", "holds the key"),
    ({"--key-file": "empty"}, "--key-file empty: it is empty", "openssl rand -hex 32"),
    ({"--key-file": "short"}, "the key has 5 bytes", "16 are the fewest"),
]


@pytest.mark.parametrize(("change", "begin", "holds"), WRONG, ids=[str(change) for change, _, _ in WRONG])
def test_a_wrong_word_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str], folder: Path, change: dict[str, str], begin: str, holds: str
) -> None:
    (folder / "empty").write_text("\n")
    (folder / "short").write_text("12345\n")
    words = [word for pair in {**GOOD, **change}.items() for word in pair]
    code, lines = said(capsys, "discover", *words)
    assert (code, len(lines)) == (2, 1), lines
    assert lines[0].startswith(begin)
    assert holds in lines[0]


@pytest.mark.parametrize("missing", GOOD)
def test_what_must_be_said_is_asked_for(capsys: pytest.CaptureFixture[str], missing: str) -> None:
    words = [word for pair in GOOD.items() if pair[0] != missing for word in pair]
    assert said(capsys, "discover", *words) == (2, [f"Missing option '{missing}'; see clusterddp discover --help"])


@pytest.mark.parametrize(
    ("key", "begin"),
    [
        ("hunter2", "the key has 7 bytes; 16 are the fewest"),
        (f" hunter2{16 * chr(10)}", "the key has 7 bytes; 16 are the fewest"),
        ("\n", "CLUSTERDDP_DISCOVER_KEY: it is empty; `openssl rand -hex 32` makes a key"),
    ],
)
def test_a_key_in_the_environment_that_is_too_short_is_not_repeated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str, begin: str
) -> None:
    """Blanks around it count as little as in a file."""
    monkeypatch.setenv("CLUSTERDDP_DISCOVER_KEY", key)
    code, lines = said(capsys, "discover", *(word for pair in GOOD.items() for word in pair))
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(begin)


def test_a_command_that_is_not_there_is_said_before_anybody_waits(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for pair in GOOD.items() for word in pair]
    code, lines = said(capsys, "discover", *words, "--", "no-such-program", "--x")
    assert (code, lines) == (2, ["no-such-program: no such command on this PATH; give its path"])
    code, lines = said(capsys, "discover", *words, "--json", "--", "sh")
    assert (code, lines) == (2, ["--json prints and COMMAND runs; give one of them"])
