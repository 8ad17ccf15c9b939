"""`python -m tests.release`: what keeps this checkout from being released, a line each; nothing where it can be."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
_VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"$', re.MULTILINE)


def git(root: Path, *words: str) -> str:
    """Return git's output; empty if git fails."""
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False).stdout.strip()


def obstacles(root: Path, tag: str = "") -> list[str]:
    """Return what has to be done before this checkout can be released (as ``tag``, if given), one line each."""
    found = _VERSION.search((root / "clusterddp/__init__.py").read_text(encoding="utf-8"))
    if not found:
        return ['clusterddp/__init__.py: no line `__version__ = "1.2.3"`']
    version = found[1]
    wrong = [f"the tag {tag} is not v{version}; tag this version"] if tag not in ("", f"v{version}") else []
    return [*wrong, *_of_metadata(root), *_of_changelog(root, version), *_of_history(root, version)]


def _of_metadata(root: Path) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = []
    if "version" in project or project.get("dynamic") != ["version"]:
        said.append("pyproject.toml: the version stands in clusterddp/__init__.py alone; declare it as dynamic")
    if not project.get("urls", {}).get("Repository"):
        said.append("pyproject.toml: [project.urls] has no Repository; write where this repository is published")
    return said


def _of_changelog(root: Path, version: str) -> list[str]:
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[([^]]+)\](.*)$", text, re.MULTILINE)
    released = [(name, rest) for name, rest in headings if name.lower() != "unreleased"]
    if not released or released[0][0] != version:
        return [f"CHANGELOG.md: the first release there is not {version}; say what it changes"]
    if not re.fullmatch(r" - \d{4}-\d{2}-\d{2}", released[0][1]):
        return [f"CHANGELOG.md: {version} has no day of its release; `## [{version}] - YYYY-MM-DD`"]
    return []


def _of_history(root: Path, version: str) -> list[str]:
    said = []
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        said.append(f"not as committed: {changed[0].split(maxsplit=1)[1]}, 1 of {len(changed)}; commit or remove them")
    tagged = git(root, "rev-parse", "--quiet", "--verify", f"refs/tags/v{version}^{{commit}}")
    if tagged and tagged != git(root, "rev-parse", "HEAD"):
        said.append(f"v{version} is the tag of another commit, {tagged[:8]}; raise the version")
    return said


if __name__ == "__main__":
    pushed = os.environ.get("GITHUB_REF_TYPE") == "tag"
    lines = obstacles(ROOT, os.environ["GITHUB_REF_NAME"] if pushed else "")
    sys.exit("\n".join(f"release: {line}" for line in lines) if lines else 0)
