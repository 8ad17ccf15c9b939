"""Do the same work on many hosts at once, in a bounded pool; each host's outcome is a value or its error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from clusterddp.errors import ClusterddpError, one_error
from clusterddp.hosts.file_limit import make_room

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from clusterddp.hosts.client import Host
    from clusterddp.inventory import HostEntry

T = TypeVar("T")
MAX_AT_ONCE = 48  # hosts


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome(Generic[T]):
    """The outcome for one item: a value or an error, never both."""

    name: str
    value: T | None = None
    error: ClusterddpError | None = None

    def get(self) -> T:
        """Return the value, or raise the error."""
        if self.error:
            raise self.error
        return self.value  # type: ignore[return-value]

    @property
    def reason(self) -> str:
        """The error without its host's name, for a caller that shows the name beside it; empty without an error."""
        return str(self.error).removeprefix(f"{self.name}: ") if self.error else ""


def each(items: Iterable[Any], work: Callable[[Any], T], *, at_once: int = MAX_AT_ONCE) -> list[Outcome[T]]:
    """Call ``work`` for every item (each has a ``name``) in a bounded pool; outcomes in the items' order.

    Only ClusterddpErrors become outcomes: anything else is a bug and is raised.
    """

    def attempt(item: Any) -> Outcome[T]:
        try:
            return Outcome(name=item.name, value=work(item))
        except ClusterddpError as error:
            return Outcome(name=item.name, error=error)

    todo = list(items)
    if not todo:
        return []
    pool = ThreadPoolExecutor(max_workers=min(at_once, len(todo)))
    try:
        return list(pool.map(attempt, todo))
    finally:  # map has waited for all; after Ctrl-C do not wait for a host that may never answer
        pool.shutdown(wait=False, cancel_futures=True)


def values(outcomes: Iterable[Outcome[T]]) -> list[T]:
    """Return every outcome's value; raises HostsError if several failed; of one failure, its own error is raised."""
    outcomes = list(outcomes)
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors:
        raise one_error(errors)
    return [outcome.get() for outcome in outcomes]


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Hosts of the inventory, each connected when it is first asked."""

    entries: Sequence[HostEntry]
    connect: Callable[[HostEntry], Host]

    def each(self, work: Callable[[Host], T]) -> list[Outcome[T]]:
        """Call ``work`` for every host, connected, in a bounded pool; outcomes in the hosts' order."""
        make_room(self.entries)
        return each(self.entries, lambda entry: work(self.connect(entry)))

    def only(self, names: Collection[str]) -> HostGroup:
        """Return the group of those of these hosts."""
        return HostGroup([entry for entry in self.entries if entry.name in names], self.connect)
