"""Write the output of commands that belong to no run as one JSON object per line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from clusterddp.logs.render import Renderer

if TYPE_CHECKING:
    from clusterddp.logs.lines import Span
    from clusterddp.logs.view import FileView


class OutputRenderer(Renderer):
    """Renders ``{host, stream, text}`` for each line."""

    def render(self, view: FileView, span: Span) -> bytes:
        """Render one span as JSON lines."""
        stream = view.header["stream"]
        texts = [text.decode(errors="replace") for _, _, text in view.splitter.lines_of(span)]
        lines = [json.dumps({"host": view.host, "stream": stream, "text": text}) + "\n" for text in texts]
        return "".join(lines).encode()
