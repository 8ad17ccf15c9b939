"""`skill`: the text for agents names what exists, and is installed without overwriting what somebody has edited."""

from __future__ import annotations

import os
import re
import shlex
import stat
from typing import TYPE_CHECKING

import pytest
import yaml

from clusterddp.cli.main import ALIASES, COMMANDS, main
from tests.skill import SKILL, lines, spans
from tests.unit.cli_help import folder, options, said

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["folder"]


def own_words(line: str) -> list[str]:
    """Return a call's command and options, without the arguments of a script or of another program."""
    words = shlex.split(re.sub(r"^.*?\bclusterddp ", "", line))
    return [word for index, word in enumerate(words) if not {"train.py", "--"} & {*words[:index]}]


@pytest.mark.parametrize("line", lines())
def test_a_line_of_the_skill_has_a_command_and_options_that_exist(line: str) -> None:
    name, *words = own_words(line)
    given = {word for word in words if word.startswith("-") and word != "--"}
    known = options(name) if name != "COMMAND" else {"--help"}
    assert name in {*COMMANDS, "COMMAND"}
    assert given <= known


def test_what_the_skill_forbids_exists_too() -> None:
    for span in spans():
        name, *words = span.split()
        if words and name in COMMANDS:
            assert {word for word in words if word.startswith("-")} <= options(name), span
    alone = {span.split()[0] for span in spans() if span.startswith("--")}
    assert alone <= set().union(*(options(name) for name in COMMANDS))
    assert not ALIASES.keys() & {own_words(line)[0] for line in lines()}  # one word for one thing


def test_the_front_matter_is_what_agents_ask_for() -> None:
    _, front, _ = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    values = yaml.safe_load(front)
    assert values.keys() == {"name", "description"}
    assert values["name"] == "clusterddp"  # the folder's name too
    assert 0 < len(values["description"]) <= 1024


def test_it_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["skill"])
    assert ended.value.code == 0
    assert capsys.readouterr() == (SKILL.read_text(encoding="utf-8"), "")


def test_it_is_installed_for_all_to_read_and_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / ".claude/skills/clusterddp/SKILL.md"
    mask = os.umask(0o077)
    try:
        assert said(capsys, "skill", "--install", ".claude/skills") == (0, ["wrote .claude/skills/clusterddp/SKILL.md"])
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.read_text().startswith(SKILL.read_text(encoding="utf-8"))
    again = said(capsys, "skill", "--install", ".claude/skills")
    assert again == (0, [".claude/skills/clusterddp/SKILL.md is up to date"])
    assert [one.name for one in path.parent.iterdir()] == ["SKILL.md"]


def test_a_home_is_understood(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "skill", "--install", "~/.agents/skills")[0] == 0
    assert (folder / "home/.agents/skills/clusterddp/SKILL.md").is_file()


def test_the_home_of_an_unknown_user_is_a_folders_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "skill", "--install", "~nobody-here/skills")[0] == 0
    assert (folder / "~nobody-here/skills/clusterddp/SKILL.md").is_file()


def test_another_versions_file_is_replaced_and_an_edited_one_is_not(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, older = folder / "skills/clusterddp/SKILL.md", folder / "older.md"
    older.write_text("# An older text\n")
    with monkeypatch.context() as patched:
        patched.setattr("clusterddp.cli.actions.skill_action._PLACES", (older,))
        assert said(capsys, "skill", "--install", "skills")[0] == 0
    replaced = said(capsys, "skill", "--install", "skills")
    assert replaced == (0, ["skills/clusterddp/SKILL.md was of another version and is replaced"])
    assert path.read_text().startswith(SKILL.read_text(encoding="utf-8"))
    for text in (path.read_text().replace("Never", "Always"), path.read_text() + "more\n", "mine\n", ""):
        path.write_text(text)
        code, lines = said(capsys, "skill", "--install", "skills")
        assert (code, len(lines)) == (2, 1)
        assert lines[0].startswith("skills/clusterddp/SKILL.md has been edited and is not overwritten; ")
        assert path.read_text() == text


def test_what_is_no_file_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = folder / "mine.md"
    mine.write_text("mine\n")
    path = folder / "skills/clusterddp/SKILL.md"
    path.parent.mkdir(parents=True)
    path.symlink_to(mine)
    link = said(capsys, "skill", "--install", "skills")
    assert link == (2, ["skills/clusterddp/SKILL.md is a link; move it away, or name another folder"])
    assert mine.read_text() == "mine\n"
    path.unlink()
    os.mkfifo(path)  # to open one to read would wait for ever
    fifo = said(capsys, "skill", "--install", "skills")
    assert fifo[0] == 2
    assert fifo[1][0].startswith("skills/clusterddp/SKILL.md cannot be read (")
    in_file = said(capsys, "skill", "--install", "mine.md")
    assert in_file[0] == 2
    assert in_file[1][0].startswith("mine.md/clusterddp/SKILL.md cannot be read (Not a directory)")
