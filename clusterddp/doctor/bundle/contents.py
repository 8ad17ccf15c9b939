"""What goes into a bundle: its members, what each is, what could not be had; and its index in plain text. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clusterddp.remote.shared.bundle.archive import Member
from clusterddp.remote.shared.bundle.bundle_records import BundlePart
from clusterddp.remote.shared.text.redaction import Redaction, hide_url_passwords
from clusterddp.remote.shared.text.secret_names import hide_assigned
from clusterddp.text.folding import folded_names
from clusterddp.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

README, WHY_TEXT, WHY_JSON = "README.txt", "why.txt", "why.json"
HOSTS = "hosts/"  # the folder of the hosts' folders
EVERYTHING = "everything"  # what is missing of a host that does not answer
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
    """The members so far, in the order of the index."""

    members: list[Member] = field(default_factory=list)
    parts: list[BundlePart] = field(default_factory=list)  # what each member is
    missing: list[tuple[str, str, str]] = field(default_factory=list)  # host (or nothing), what, why

    def add(self, name: str, what: str, text: str, note: str = "") -> None:
        """Add a text."""
        self.members.append(Member(name, text.encode("utf-8", "replace")))
        self.parts.append(BundlePart(name, what, note))

    def add_json(self, name: str, what: str, value: Any) -> None:
        """Add a JSON value."""
        self.add(name, what, json.dumps(value, indent=1) + "\n")

    def lack(self, what: str, why: str, host: str = "") -> None:
        """Note that something could not be had."""
        self.missing.append((host, what, why))

    def packable(self, top: str, heading: Heading, secrets: Iterable[str]) -> list[Member]:
        """Return all members, the index first, in the folder ``top``; no text in them holds one of the secrets."""
        redaction = Redaction(secrets)
        parts = sorted(self.parts, key=_place)
        index = Member(README, readme(heading, parts, self.missing).encode("utf-8", "replace"))
        return [
            Member(f"{top}/{member.name}", _struck(member.body.decode(errors="replace"), redaction).encode())
            for member in (index, *sorted(self.members, key=_place))
        ]


def _place(one: Member | BundlePart) -> tuple[bool, str]:
    """Order members: those of the whole run as they were added, then those of each host by name."""
    of_host = one.name.startswith(HOSTS)
    return of_host, one.name if of_host else ""


def _struck(text: str, redaction: Redaction) -> str:
    return hide_assigned(hide_url_passwords(redaction.text(text)))


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
