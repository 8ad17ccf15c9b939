"""Declare a variable of the inventory once: the names that set it, how its value is read, and its default."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterddp.inventory.variables.reader import VariableReader
    from clusterddp.inventory.yaml_values import Setting

T = TypeVar("T")
PREFIX = "clusterddp_"
_METADATA_KEY = "variable"
# Where Slurm chooses a job's machines, one value holds for all of them: the one of the first node that the inventory
# names, or of the login host, whose folders the nodes share.
OfJob = Literal["", "nodes", "login"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """What is declared of one variable, besides its name, type and default, which its field has."""

    names: tuple[str, ...]  # its names in inventories. Of aliases the last that is set counts.
    # reads its value; called only if one of the names is set. None: it is merged over a host's groups.
    read: Callable[[VariableReader], object] | None
    of_job: OfJob = ""  # whose value holds for all nodes of a Slurm job; empty: each host's own, or none


def variable(name: str | tuple[str, ...], read: Callable[[Setting], T], *, default: T, of_job: OfJob = "") -> T:
    """Declare a field whose variable has one setting."""
    names = (name,) if isinstance(name, str) else name
    return _declare(names, lambda reader: read(reader.needed(*names)), default, of_job)


def variables(
    names: tuple[str, ...],
    read: Callable[[VariableReader], T] | None,
    *,
    default: T,
    of_job: OfJob = "",
    repr: bool = True,  # noqa: A002 - as ``dataclasses.field`` calls it
) -> T:
    """Declare a field whose value comes from several variables, or, without ``read``, from several layers."""
    return _declare(names, read, default, of_job, show=repr)


def required(names: tuple[str, ...], read: Callable[[Setting], object]) -> Mapping[str, Variable]:
    """Return the metadata of a field without a default, for ``dataclasses.field``, whose variable has one setting."""
    return {_METADATA_KEY: Variable(names=names, read=lambda reader: read(reader.needed(*names)))}


def _declare(
    names: tuple[str, ...],
    read: Callable[[VariableReader], object] | None,
    default: T,
    of_job: OfJob,
    *,
    show: bool = True,
) -> T:
    metadata = {_METADATA_KEY: Variable(names=names, read=read, of_job=of_job)}
    if isinstance(default, dict):
        return field(default_factory=dict, repr=show, metadata=metadata)  # type: ignore[return-value] # empty
    return field(default=default, repr=show, metadata=metadata)


def declared_variables(kind: type[Any]) -> dict[str, Variable]:
    """Return the variables of a class's fields by the fields' names; a field that no variable sets is left out."""
    return {
        declared.name: declared.metadata[_METADATA_KEY]
        for declared in fields(kind)
        if _METADATA_KEY in declared.metadata
    }
