"""What decides which wheels a host takes: its base interpreter and its C library. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.tags import Tag

    from clusterddp.remote.shared.schema.fields import Fields

_VERSION = re.compile(r"3\.[0-9]{1,2}\.[0-9a-z+]{1,20}")
_MACHINE = re.compile(r"[A-Za-z0-9_]{1,40}")
_MOST = 200  # of a version's number: every one below it becomes a tag
_UV_GLIBCS = (17, 28, *range(31, 41))  # the glibc 2.N that uv has names for


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of host.

    Attributes:
        python: The base interpreter's version, in full.
        threads: ``t`` where it was built without the global lock, else empty.
        machine: As of ``uname -m``.
        libc: ``glibc`` or ``musl``.
        libc_version: Its version, major and minor.
    """

    python: str
    threads: str
    machine: str
    libc: str
    libc_version: tuple[int, int]

    def __str__(self) -> str:
        version = ".".join(map(str, self.libc_version))
        return f"Python {self.python}{self.threads} on {self.machine} with {self.libc} {version}"

    @property
    def uv_platform(self) -> str:
        """The platform by uv's name: the newest that it has and that is not newer than the host's."""
        if self.libc == "musl":
            return f"{self.machine}-unknown-linux-musl"
        fitting = [minor for minor in _UV_GLIBCS if minor <= self.libc_version[1]] or [_UV_GLIBCS[0]]
        return f"{self.machine}-manylinux_2_{fitting[-1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What markers of requirements are judged by."""
        return {
            "implementation_name": "cpython",
            "implementation_version": self.python,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": self.python,
            "platform_python_implementation": "CPython",
            "python_version": ".".join(self.python.split(".")[:2]),
            "sys_platform": "linux",
        }

    def tags(self) -> list[Tag]:
        """The tags of wheels that it takes, the best first."""
        from packaging.tags import compatible_tags, cpython_tags  # noqa: PLC0415 - start-up

        major, minor = map(int, self.python.split(".")[:2])
        platforms = list(self.platforms())
        abis = [f"cp{major}{minor}{self.threads}"]
        found = [*cpython_tags((major, minor), abis, platforms)]
        return [*found, *compatible_tags((major, minor), f"cp{major}{minor}", platforms)]

    def platforms(self) -> Iterator[str]:
        """The platforms of wheels that it takes, the newest first."""
        major, minor = self.libc_version
        if self.libc == "musl":
            yield from (f"musllinux_{major}_{older}_{self.machine}" for older in range(minor, -1, -1))
        else:
            legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
            for older in range(minor, 4, -1):
                yield f"manylinux_2_{older}_{self.machine}"
                if older in legacy:
                    yield f"{legacy[older]}_{self.machine}"
        yield f"linux_{self.machine}"


def kind_of(fields: Fields) -> Kind:
    """A host's kind, from what it tells of its base interpreter.

    Raises:
        ValueError: it is none that wheels are made for.
    """
    version, libc = fields.check("version", _VERSION.fullmatch, "a version of Python 3"), fields.text("libc")
    if fields.text("implementation") != "cpython" or libc not in {"glibc", "musl"}:
        raise fields.wrong("implementation", (fields.text("implementation"), libc), "CPython on glibc or musl")
    major, minor = fields.pair("libc_version")
    if max(major, minor) > _MOST:
        raise fields.wrong("libc_version", (major, minor), "a version")
    return Kind(
        python=version,
        threads="t" if fields.flag("free_threaded") else "",
        machine=fields.check("machine", _MACHINE.fullmatch, "a machine's name"),
        libc=libc,
        libc_version=(major, minor),
    )
