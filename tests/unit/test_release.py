"""A checkout that must not be released says why, a line each."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.release import git, obstacles

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {
    "clusterddp/__init__.py": '"""."""\n\n__version__ = "1.2.3"\n',
    "pyproject.toml": '[project]\nname = "x"\ndynamic = ["version"]\n[project.urls]\nRepository = "https://example.org/x"\n',
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-11-26\n\n- more\n\n## [1.2.2] - 2026-10-01\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository that can be released."""
    for name, text in GOOD.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *who, "commit", "--quiet", "-m", "x"], cwd=folder, check=True)


def test_nothing_is_said_of_a_checkout_that_can_be_released(checkout: Path) -> None:
    assert obstacles(checkout) == []
    git(checkout, "tag", "v1.2.3")
    assert obstacles(checkout) == []
    assert obstacles(checkout, "v1.2.3") == []


def test_a_tag_of_another_version_is_said(checkout: Path) -> None:
    assert obstacles(checkout, "v1.2.4") == ["the tag v1.2.4 is not v1.2.3; tag this version"]


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("clusterddp/__init__.py", "1.2.3", "next", "no line `__version__"),
        ("clusterddp/__init__.py", "1.2.3", "1.2.4", "the first release there is not 1.2.4"),
        (
            "pyproject.toml",
            'dynamic = ["version"]',
            'version = "1.2.3"',
            "declare it as dynamic",
        ),
        ("pyproject.toml", "Repository", "Funding", "has no Repository"),
        ("CHANGELOG.md", " - 2026-11-26", " - not released yet", "1.2.3 has no day of its release"),
    ],
)
def test_what_is_missing_is_said(checkout: Path, name: str, before: str, after: str, said: str) -> None:
    path = checkout / name
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    commit(checkout)
    (line,) = obstacles(checkout)
    assert said in line


def test_a_changed_tree_and_a_tag_elsewhere_are_said(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    (checkout / "more").write_text("")
    assert obstacles(checkout) == ["not as committed: more, 1 of 1; commit or remove them"]
    commit(checkout)
    (line,) = obstacles(checkout)
    assert line.startswith("v1.2.3 is the tag of another commit, ")
