"""Draws HTML pages from Jinja2 templates, which lie beside the modules that fill them."""

from __future__ import annotations

from typing import Any


def render_page(template: str, **values: Any) -> str:
    """Fill a template (a path below this package) with values; text is escaped, and a missing value is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - few commands draw a page

    templates = Environment(
        loader=PackageLoader("clusterddp", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template(template).render(values)
