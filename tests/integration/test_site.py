"""The site builds without a warning; what its pages link to within it is there, and its search knows them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

import clusterddp

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_HREF = re.compile(r'(?:href|src)="([^"]+)"')
_ID = re.compile(r'\bid="([^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, as `make site` builds them."""
    folder = tmp_path_factory.mktemp("site")
    argv = [
        sys.executable,
        "-m",
        "sphinx",
        "--quiet",
        "--fail-on-warning",
        "--conf-dir",
        "docs/site",
        "--builder",
        "html",
    ]
    done = subprocess.run([*argv, ".", folder], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def dead_links(folder: Path) -> Iterator[str]:
    """What pages link to within the site and is not there: a page, a file, or a place on a page."""
    texts = {page: page.read_text(encoding="utf-8") for page in folder.rglob("*.html")}
    ids = {page: {"", *_ID.findall(text)} for page, text in texts.items()}
    for page, text in texts.items():
        for link in _HREF.findall(text):
            path, _, anchor = unquote(link).partition("#")
            target = (page.parent / path.partition("?")[0]).resolve() if path else page
            local = not re.match(r"[a-z]+:", link)
            if local and (not target.is_file() or (target in ids and anchor not in ids[target])):
                yield f"{page.relative_to(folder)}: {link}"


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    assert list(dead_links(site)) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="x"><a href="a.html#x"> <a href="#y"> <a href="b.html"> <a href="https://c.d">'
    )
    assert list(dead_links(tmp_path)) == ["a.html: #y", "a.html: b.html"]


def test_every_page_and_every_example_is_in_the_search(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    known = set(json.loads(index[index.index("{") : index.rindex("}") + 1])["docnames"])
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py"), *ROOT.glob("*.md")]
    wanted = {page.relative_to(ROOT).with_suffix("").as_posix() for page in pages} - {"SKILL"}
    assert wanted - known == set()


def test_the_reference_has_every_public_name(site: Path) -> None:
    ids = set(_ID.findall((site / "docs/site/api.html").read_text(encoding="utf-8")))
    assert {f"clusterddp.{name}" for name in clusterddp.__all__ if not name.startswith("_")} - ids == set()


def test_the_front_page_lists_the_sections_of_the_table_of_contents(site: Path) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    captions = re.findall(r'class="caption-text">([^<]+)<', front)
    assert captions == re.findall(r"^## (.+)$", (ROOT / "docs/README.md").read_text(encoding="utf-8"), re.MULTILINE)
