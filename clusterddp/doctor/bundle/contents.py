"""What goes into a bundle: its members, what each is, what could not be had; and its index in plain text. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.bundle.archive import MAX_MEMBER, MAX_MEMBERS, NAME, Member
from clusterddp.remote.shared.bundle.bundle_records import BundlePart
from clusterddp.remote.shared.text.redaction import Redaction
from clusterddp.remote.shared.text.secret_names import strike
from clusterddp.text.folding import folded_names
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

README, WHY_TEXT, WHY_JSON = "README.txt", "why.txt", "why.json"
MAX_NAME = 100  # letters of a name in the index of what is missing
MAX_TOTAL = 96 << 20  # bytes of all members, before they are compressed
HOSTS = "hosts/"  # the folder of the hosts' folders
EVERYTHING = "everything"  # what is missing of a host that does not answer
MAX_INDEX = 1 << 20  # letters of the index
_MAX_WIDTH = 60  # columns of the names in the index; longer names push their line to the right


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """What the index says of the whole bundle."""

    run: str
    script: str
    sentence: str  # of ``why``
    when: str  # it was collected
    version: str
    secrets: tuple[str, ...]  # the names of the run's secrets


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The members so far."""

    values: dict[str, Any] = field(default_factory=dict)  # by name: a text, or what is to be written as JSON
    parts: list[BundlePart] = field(default_factory=list)  # what each member is
    missing: list[tuple[str, str, str]] = field(default_factory=list)  # host (or nothing), what, why

    def add(self, name: str, what: str, value: Any, note: str = "") -> None:
        """Add a member, a text or a value for JSON; hosts choose the names of theirs."""
        if name in self.values or not NAME.fullmatch(f"top/{name}"):
            self.lack(name[:MAX_NAME], "there is another of this name, or it is no name for a bundle")
        elif len(self.parts) < MAX_MEMBERS - 1:
            self.values[name] = value
            self.parts.append(BundlePart(name, what, note))
        else:
            self.lack(name, "a bundle has no room for more files")

    def lack(self, what: str, why: str, host: str = "") -> None:
        """Note that something could not be had."""
        self.missing.append((host, what, why))

    def packable(self, top: str, heading: Heading, secrets: Iterable[str]) -> list[Member]:
        """Return all members, the index first, in the folder ``top``; no text in them holds one of the secrets.

        What would make it too large to be read is left out.
        """
        redaction, room = Redaction(secrets), MAX_TOTAL
        members = []
        for part in sorted(self.parts, key=_place):
            body = _body(self.values[part.name], redaction)
            if len(body) <= min(room, MAX_MEMBER):
                room -= len(body)
                members.append(Member(f"{top}/{part.name}", body))
            else:
                self.parts.remove(part)
                self.lack(part.name, "there is no room left for it in a bundle")
        index = readme(heading, sorted(self.parts, key=_place), self.missing)
        if len(index) > MAX_INDEX:
            index = f"{index[:MAX_INDEX]}\n\nThe rest of this list is left out: it is too long.\n"
        return [Member(f"{top}/{README}", _body(index, redaction)), *members]


def _place(part: BundlePart) -> tuple[bool, str]:
    """Order members: those of the whole run as they were added, then those of each host by name."""
    of_host = part.name.startswith(HOSTS)
    return of_host, part.name if of_host else ""


def _body(value: Any, redaction: Redaction) -> bytes:
    struck = strike(value, redaction)
    text = struck if isinstance(struck, str) else json.dumps(struck, indent=1) + "\n"
    return text.encode("utf-8", "replace")


def readme(heading: Heading, parts: Sequence[BundlePart], missing: Sequence[tuple[str, str, str]]) -> str:
    """Write the index: what this is, what each member is, what is missing and why."""
    named = f" ({', '.join(heading.secrets)})" if heading.secrets else ""
    width = min(_MAX_WIDTH, max((len(part.name) for part in parts), default=0))
    lines = [
        f"Bundle of run {heading.run}: {heading.script or 'a script'}",
        f"collected {heading.when} by clusterddp {heading.version}",
        "",
        f"  {heading.sentence}",
        "",
        "Begin with why.txt. These need no host; FILE is this archive:",
        "  clusterddp why FILE                 says the sentence above again, with the evidence",
        "  clusterddp doctor --explain FILE    says what known messages in the outputs mean",
        "",
        f"Secrets: the values of the run's secrets{named} and of all variables, options and settings",
        "whose names say that they are secret were replaced by ********. Whatever else the script printed is here",
        "as it was printed: look through outputs/ before you give this to anybody.",
        "",
        "WHAT IS HERE",
        *(_described(part, width) for part in parts),
        "",
        "WHAT IS NOT HERE, AND WHY",
        *(_lacks(missing) or ["  nothing is missing"]),
    ]
    return "".join(f"{one_line(line)}\n" for line in lines)


def _described(part: BundlePart, width: int) -> str:
    note = f"; {part.note}" if part.note else ""
    return f"  {part.name:{width}}  {part.what}{note}"


def _lacks(missing: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return a line for each thing that is missing, hosts that lack it for the same reason together."""
    hosts: dict[tuple[str, str], list[str]] = {}
    for host, what, why in missing:
        hosts.setdefault((what, why), []).extend([host] if host else [])
    return [f"  {f'{folded_names(names)}: ' if names else ''}{what}: {why}" for (what, why), names in hosts.items()]
