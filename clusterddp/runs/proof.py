"""A host's answer to a stop: which processes it ended, which survive, and what it could not inspect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clusterddp.errors import HelperError
from clusterddp.remote.shared.text.counted import counted

if TYPE_CHECKING:
    from clusterddp.remote.shared.run.stop_records import StopAnswer


class Survivor(NamedTuple):
    """A process that a stop could not end."""

    pid: int
    command: str
    state: str = ""  # the kernel's state letter; D: uninterruptible sleep
    user: str = ""  # the user it runs as, if not the connection's user

    def __str__(self) -> str:
        notes = ["in a sleep that no signal ends"] if self.state == "D" else []
        notes += [f"of user {self.user}"] if self.user else []
        return f"{self.pid} ({'; '.join([self.command, *notes])})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What a stop found on one host."""

    host: str
    found: int = 0  # processes of the run
    killed: int = 0  # of these, those that needed SIGKILL: SIGTERM and the grace period did not end them
    survivors: tuple[Survivor, ...] = ()
    unknown: tuple[str, ...] = ()  # what could not be inspected, one line each; if there is any, nothing is proved
    gpus: int | None = None  # NVIDIA GPUs that were checked for processes that hold them; None: the host has none
    error: str = ""  # why the host could not be asked at all

    @property
    def proved_empty(self) -> bool:
        """Whether it is certain that nothing of the run is left on the host."""
        return not (self.survivors or self.unknown or self.error)

    @property
    def summary(self) -> str:
        """The proof in one line for the user."""
        if self.error:
            return self.error
        ended = self.found - len(self.survivors)
        line = f"{counted(ended, 'process', 'processes')} ended"
        if self.killed:
            line += f" ({self.killed} by SIGKILL)"
        if self.survivors:
            line += f", still there: {', '.join(map(str, self.survivors))}"
        if self.unknown:
            line += f", not proved: {'; '.join(self.unknown)}"
        if not self.proved_empty:
            return line
        return f"{line}, {'' if self.gpus is None else 'no GPU held, '}proved empty"


def of_answer(host: str, answer: StopAnswer) -> Proof:
    """Return the proof in a host's answer to the operation ``stop``, which covers all attempts.

    Raises HelperError if the answer is not about the one node that the host was asked for.
    """
    if [node.host for node in answer.nodes] != [host]:
        raise HelperError(host, "its answer to the stop says nothing of its node, or of others")
    (node,) = answer.nodes
    return Proof(
        host=host,
        found=node.found,
        killed=node.killed,
        survivors=tuple(Survivor(left.pid, left.command, left.state, left.user) for left in node.survivors),
        unknown=node.unknown,
        gpus=node.gpus,
    )
