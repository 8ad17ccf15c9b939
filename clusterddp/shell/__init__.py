"""Commands of the user on all hosts at once, a login shell on one, forwarded ports: all outside any run."""

from clusterddp.shell.command import Command, Executed
from clusterddp.shell.execution import Execution

__all__ = ["Command", "Executed", "Execution"]
