"""Read a bundle's file without any host; whatever is in it, a value comes of it or one error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterddp.doctor.bundle.contents import WHY_JSON
from clusterddp.doctor.explain import explain
from clusterddp.errors import UsageError
from clusterddp.facts.read_facts import read_as
from clusterddp.project import project_folder
from clusterddp.remote.shared.bundle.archive import unpack
from clusterddp.remote.shared.run.plan import AGENT_LOG
from clusterddp.remote.shared.schema.fields import DamagedError, Fields
from clusterddp.remote.shared.schema.record import MAX_LENGTH, parse_record
from clusterddp.runs.why import Why

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterddp.doctor.explain import ExplainedMessage

MAX_BYTES = 256 << 20  # of the file
MAGIC = b"\x1f\x8b"  # how it begins: gzip
SUFFIX = ".tar.gz"
_OUTPUTS = (".out", ".err", ".log", ".txt")  # members that are read for known messages
_OURS = ("README.txt", "why.txt", "verdict.txt", "stacks.txt")  # what quotes other members


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBundle:
    """A bundle that was read: its members by name, without the folder that all are in."""

    path: Path
    members: Mapping[str, bytes]

    def why(self) -> Why:
        """Return the answer of ``why`` when the bundle was collected; raises UsageError if it is missing or damaged."""
        try:
            return parse_record(self.members.get(WHY_JSON, b""), read_why)
        except ValueError as error:
            raise not_one(self.path, f"its {WHY_JSON}: {error}") from None

    def explain(self) -> list[tuple[str, ExplainedMessage]]:
        """Return the known messages in its outputs, each with the member where it comes first; torchrun's come last."""
        found: dict[str, tuple[str, ExplainedMessage]] = {}
        for name, body in sorted(self.members.items(), key=lambda one: (one[0].endswith(AGENT_LOG), one[0])):
            if name.endswith(_OUTPUTS) and name not in _OURS:
                for message in explain(body.decode(errors="replace").split("\n")):
                    found.setdefault(message.known.name, (name, message))
        return list(found.values())


def is_bundle(path: Path) -> bool:
    """Whether a file begins as a bundle does; False where it cannot be read, and of a pipe, which is read once."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def names_file(word: str) -> bool:
    """Whether a word means a bundle's file rather than a run: it has a slash, or ends as bundles do."""
    return "/" in word or word.endswith((SUFFIX, ".tgz"))


def read_bundle(path: Path) -> ReadBundle:
    """Read a bundle; raises UsageError if it is none, is damaged, or unpacks to too much."""
    try:
        members = unpack(project_folder.read(path, MAX_BYTES, follow_link=True))
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}", remedy="`clusterddp bundle RUN` writes one") from None
    except OSError as error:
        raise not_one(path, error.strerror or "it cannot be read") from None
    except DamagedError as error:
        raise not_one(path, str(error)) from None
    tops = {member.name.partition("/")[0] for member in members}
    top = f"{tops.pop()}/" if len(tops) == 1 else ""
    return ReadBundle(path=path, members={member.name.removeprefix(top): member.body for member in members})


def not_one(path: Path, why: str) -> UsageError:
    """Return the error for a file that is no bundle."""
    return UsageError(f"{path} is no bundle that can be read: {why}", remedy="`clusterddp bundle RUN` writes one")


def read_why(data: Any) -> Why:
    """Read the object of ``why --json``; raises DamagedError."""
    fields = Fields(data, "why.", most=MAX_LENGTH)
    return replace(read_as(Why, fields), kind=fields.maybe_text("class"))
