"""Validate a host's log frames: only frames of the requested run pass, and every field is checked."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from clusterddp.errors import HelperError
from clusterddp.remote.shared.run.log_frames import read_hello, read_lines, read_offsets
from clusterddp.remote.shared.schema.fields import Fields
from clusterddp.remote.shared.wire.frames import Frame, parse_json

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


def checked(frames: Generator[Frame], host: str, run: str, attempt: int) -> Iterator[Frame]:
    """Yield the valid frames of a host's ``tail``; closing this generator closes the source. Raises HelperError."""
    begun = False
    with contextlib.closing(frames):
        for frame in frames:
            try:
                if frame.kind == "end":
                    yield _end(frame)
                else:
                    yield read_lines(frame) if begun else read_hello(frame, run, attempt)
            except ValueError as error:
                raise HelperError(host, f"its logs are damaged: {error}") from error
            begun = True


def _end(frame: Frame) -> Frame:
    """Check the last frame, whose body is the result: ``{ended, offsets}``."""
    value = parse_json(frame.body)
    fields = Fields(value)
    if fields.given("ended"):
        fields.part("ended")
    read_offsets(fields)
    return Frame({"kind": "end"}, frame.body)
