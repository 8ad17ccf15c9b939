"""Settings of the site (`make site`): the repository's own Markdown, its examples as pages, the API from docstrings.

Pages are read where they lie, so that a link serves on a forge and here. What Markdown cannot say on a forge, the table
of contents, is made of docs/README.md.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.parsers import Parser

from clusterddp import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
CONTENTS = ROOT / "docs" / "README.md"
API = "docs/site/api"
# Where pages hang in the table of contents that docs/README.md does not name.
FILES = {
    "examples/README": "**",
    "playbooks/README": "**",
    "docs/inventory": "../inventories/*",
    "docs/coming-from": "coming-from/*",
}

project = "clusterddp"
version = release = __version__
copyright = "the authors of clusterddp, MIT license"  # noqa: A001 - Sphinx reads this name
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/coming-from/*.md",
    f"{API}.rst",
    "*/README.md",
    "examples/**.py",
    "inventories/*.yaml",
    "playbooks/**.yml",
]
exclude_patterns = ["SKILL.md", ".*", "build"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext", ".py": "file", ".yaml": "file", ".yml": "file"}
myst_heading_anchors = 4

smartquotes = False  # they would make a dash of an option's two
default_role = "literal"  # what stands between single backticks in a docstring is code, as in Markdown
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
napoleon_use_ivar = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"clusterddp {version}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]


class FileParser(Parser):
    """Shows a file of the repository as a page: its path, then its text."""

    supported = ("file",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Make the page of a file's text."""
        path = Path(document["source"])
        section = nodes.section(ids=[nodes.make_id(path.name)])
        section += nodes.title(text=path.name)
        section += nodes.literal_block(inputstring, inputstring, language="python" if path.suffix == ".py" else "yaml")
        document += section


def toctree(pages: Iterable[str], *options: str) -> str:
    """Return the directive for these pages."""
    return "\n".join(["", "```{toctree}", ":hidden:", *options, "", *pages, "```", ""])


def table_of_contents() -> str:
    """The links of each section of docs/README.md, as directives for the side bar."""
    said = [toctree(["docs/README"])]
    for section in CONTENTS.read_text(encoding="utf-8").split("\n## ")[1:]:
        caption, _, body = section.partition("\n")
        links = {posixpath.normpath(f"docs/{link}"): text for text, link in re.findall(r"\[(.+?)\]\(([^)#:]+)\)", body)}
        links.pop(f"{root_doc}.md", None)  # the page that all others hang from
        entries = [f"{text} <{link.removesuffix('.md')}>" for link, text in links.items()]
        if "docs/python-api.md" in links:
            entries.append(API)
        said.append(toctree(entries, f":caption: {caption}"))
    return "".join(said)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append toctrees to a page: all pages to the front page, and pages of files to the page about them."""
    if page == root_doc:
        source[0] += table_of_contents()
        app.env.note_dependency(str(CONTENTS))
    elif page in FILES:
        source[0] += toctree([FILES[page]], ":glob:")


def copy_front_page(app: Sphinx, error: Exception | None) -> None:
    """A server shows index.html where a folder is asked for."""
    if not error and app.builder.name == "html":
        shutil.copyfile(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Register the parser and the handlers of events with Sphinx."""
    app.add_source_parser(FileParser)
    app.connect("source-read", add_contents)
    app.connect("build-finished", copy_front_page)
