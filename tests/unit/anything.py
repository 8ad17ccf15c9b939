"""Any value of a type: evidence for the doctor's checks of which anything may be true, the same for the same seed.

A new field is covered as soon as its dataclass has it. What a host's words cannot be (facts are validated) is not made.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import pkgutil
import sys
import types
import typing
from collections.abc import Mapping
from importlib import import_module
from random import Random
from typing import Any

from clusterddp import errors, facts, inventory
from clusterddp.checks import evidence as gathered
from clusterddp.checks import model, needs
from clusterddp.checks.catalog import TABLE
from clusterddp.facts.host import Interface
from clusterddp.remote.shared.probes import network_records
from tests.unit.facts_made import interface

HOSTS = ("gpu01", "gpu02")
WORDS = (
    *("", " ", "x", "ü\n", "None", "0", "550.54.14", "470", "2.7.0+cu128", "10.0.0.1", "127.0.1.1", "nonsense", "::1"),
    *("/data", "/usr/bin/python3", "nfs4", "eth0", "eth", "lo", "^eth", "=eth0,lo", "GPU-x", "timeout", "e"),
    *("state", "workdir", "tmp", "shm", "home", "nofile", "memlock", "nproc", "NCCL_SOCKET_IFNAME", "RANK", "NCCL_X"),
)
NUMBERS = (0, 1, 2, 3, 9, 64, 999, 1 << 10, 1 << 20, 1 << 30, 1 << 40, (1 << 63) - 1)
FACTS = [import_module(f"{facts.__name__}.{one.name}") for one in pkgutil.iter_modules(facts.__path__)]
_KNOWN = {
    name: value
    for room in (typing, collections.abc, errors, inventory, network_records, *FACTS, model, gathered)
    for name, value in vars(room).items()
}


def _returned(function: Any) -> Any:
    """The type of what a function returns."""
    return typing.get_type_hints(function, {**_KNOWN, **vars(sys.modules[function.__module__])})["return"]


def fields_of(kind: Any) -> list[str]:
    """The names of a dataclass's or record's fields; none for anything else."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind) if field.init]
    return list(getattr(kind, "_fields", ()))


class Anything:
    """Values drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def of(self, kind: Any) -> Any:
        """A value of a type, as a dataclass's annotation names it."""
        origin, inner = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return self.of(self.random.choice(inner))
        if origin is typing.Literal:
            return self.random.choice(inner)
        if origin is tuple and inner[-1] is not Ellipsis:
            return tuple(self.of(one) for one in inner)
        if origin in (tuple, list, collections.abc.Sequence, collections.abc.Iterable):
            return tuple(self.of(inner[0]) for _ in range(self.random.randrange(4)))
        if origin in (dict, collections.abc.Mapping):
            return {self.of(inner[0]): self.of(inner[1]) for _ in range(self.random.randrange(5))}
        return self._plain(kind)

    def _plain(self, kind: Any) -> Any:
        if kind in (None, type(None)):
            return None
        if kind is bool:
            return self.random.random() < 0.5
        if kind is int:
            return self.random.choice(NUMBERS)
        if kind is float:
            return self.random.choice((0.0, 0.5, 3.0, 1e9))
        if kind is str:
            return self.random.choice(HOSTS + WORDS)
        if kind is Any:
            return self.random.choice((None, 0, "x"))
        if kind is Interface:
            return interface(self.random.choice(("10.0.0.1", "10.0.0.2", "127.0.0.1", "fd00::1")), speed=self.of(int))
        if not fields_of(kind):
            raise TypeError(f"no {kind} is made here")
        return self.made(kind)

    def made(self, kind: Any, **given: Any) -> Any:
        """A dataclass, some of its fields as given."""
        hints = typing.get_type_hints(kind, {**_KNOWN, **vars(sys.modules[kind.__module__])})
        return kind(**{name: given[name] if name in given else self.of(hints[name]) for name in fields_of(kind)})

    def evidence(self) -> gathered.Evidence:
        """Evidence of two hosts; whatever names a host names one of them."""
        hosts = tuple(self.host(name) for name in HOSTS)
        found = self.made(gathered.Evidence, hosts=hosts)
        assert isinstance(found, gathered.Evidence)
        return found

    def answers(self) -> dict[str, gathered.Answer]:
        """An answer to every question of every check, or none."""
        asked = {need for check in TABLE for need in check.needs if need.operation}
        kinds = {need.name: _returned(need.read) for need in asked}
        kinds[needs.SHARED.name] = Mapping[str, tuple[str, ...]]
        told = {name: self.of(kind | None) for name, kind in sorted(kinds.items(), key=lambda pair: pair[0])}
        return {name: gathered.Answer(value=value, error="" if value else "no answer") for name, value in told.items()}

    def host(self, name: str) -> gathered.HostEvidence:
        """A host of which anything may be true, or nothing is known."""
        kind = self.random.choice(("whole", "whole", "lost", "no facts", "no health"))
        entry = inventory.HostEntry(
            name=name,
            address=name,
            env=self.of(dict[str, str]),
            python=self.of(str | None),
            nproc=self.random.choice((None, 0, 1, 9)),
            gpus=self.random.choice((None, 0, 9, ("0", "GPU-x"))),
            connection=self.random.choice(("ssh", "local")),
        )
        given: dict[str, Any] = {"entry": entry, "error": None}
        if kind == "lost":
            given |= {"error": errors.UnreachableError(name, "no answer"), "facts": None}
        elif kind == "no facts":
            given |= {"facts": None}
        given |= {"answers": {} if kind in ("lost", "no health") else self.answers()}
        found = self.made(gathered.HostEvidence, **given)
        assert isinstance(found, gathered.HostEvidence)
        return found
