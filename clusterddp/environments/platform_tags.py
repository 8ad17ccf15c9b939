"""Which wheels fit a host: decided by its base interpreter and its C library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.tags import Tag

    from clusterddp.remote.shared.environment.environment_records import BaseInterpreter

_UV_GLIBC_MINORS = (17, 28, *range(31, 41))  # the N of glibc 2.N for which uv has platform names


@dataclass(frozen=True, kw_only=True, slots=True)
class HostKind:
    """What distinguishes hosts that need different wheels."""

    python: str  # the base interpreter's full version
    threads: str  # ``t`` if it was built without the global lock, else empty
    machine: str  # as ``uname -m`` prints it
    libc: str  # ``glibc`` or ``musl``
    libc_version: tuple[int, int]  # major and minor

    def __str__(self) -> str:
        version = ".".join(map(str, self.libc_version))
        return f"Python {self.python}{self.threads} on {self.machine} with {self.libc} {version}"

    @property
    def uv_platform(self) -> str:
        """The platform as uv names it: the newest whose C library is not newer than the host's."""
        if self.libc == "musl":
            return f"{self.machine}-unknown-linux-musl"
        fitting = [minor for minor in _UV_GLIBC_MINORS if minor <= self.libc_version[1]] or [_UV_GLIBC_MINORS[0]]
        return f"{self.machine}-manylinux_2_{fitting[-1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The values that environment markers of requirements are evaluated with."""
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
        """The tags of wheels that fit, the best first."""
        from packaging.tags import compatible_tags, cpython_tags  # noqa: PLC0415 - only hosts with a lock need packaging

        major, minor = map(int, self.python.split(".")[:2])
        platforms = list(self.platforms())
        abis = [f"cp{major}{minor}{self.threads}"]
        tags = [*cpython_tags((major, minor), abis, platforms)]
        return [*tags, *compatible_tags((major, minor), f"cp{major}{minor}", platforms)]

    def platforms(self) -> Iterator[str]:
        """The platform tags that fit, the newest first."""
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


def kind_of(base: BaseInterpreter) -> HostKind:
    """A host's kind from its report on its base interpreter."""
    return HostKind(
        python=base.version,
        threads="t" if base.free_threaded else "",
        machine=base.machine,
        libc=base.libc,
        libc_version=base.libc_version,
    )
