"""Commands of the operator on all hosts at once, outside any run."""

from clusterddp.shell.command import Command, Executed
from clusterddp.shell.execution import Execution

__all__ = ["Command", "Executed", "Execution"]
