"""The names of the folders beside a project's workdir. Pure.

``work`` is the project's own; ``work@NAME`` is of a run with ``--workdir NAME``; ``work~0123456789ab`` is a sibling,
for other code beside a live run, named by its digest, and there are siblings of ``work@NAME`` too.
"""

from typing import Tuple

FRESH = "fresh"  # in place of a NAME: the run's id
_DIGITS = 12  # of a digest
_HEX = "0123456789abcdef"
_OTHERS = dict.fromkeys(map(ord, "._-"), "0")  # that may stand in a NAME


def is_name(text: str) -> bool:
    """Whether it can be the NAME of a folder."""
    first = text[:1]
    return text.isascii() and first.isalnum() and len(text) <= 64 and text.translate(_OTHERS).isalnum()


def named(workdir: str, name: str) -> str:
    """The folder ``name`` beside a workdir."""
    return "%s@%s" % (workdir, name)


def sibling_of(workdir: str, digest: str) -> str:
    """The sibling of a workdir for the code of ``digest``."""
    return "%s~%s" % (workdir, digest[:_DIGITS])


def is_sibling(path: str, workdir: str) -> bool:
    """Whether a path is that of a sibling of ``workdir``."""
    name, sibling = _parted(path[len(workdir) :])
    return path.startswith(workdir) and not name and bool(sibling)


def is_beside(path: str, workdir: str) -> bool:
    """Whether a path is that of a folder beside ``workdir``, named or a sibling, or the sibling of a named one."""
    name, sibling = _parted(path[len(workdir) :])
    named_well = name.startswith("@") and is_name(name[1:])
    return path.startswith(workdir) and (named_well or (not name and bool(sibling)))


def ending(path: str, name: str) -> str:
    """What tells a run's folder from the project's own, which has no ending.

    Args:
        path: The run's folder.
        name: Its ``--workdir``, or empty.
    """
    return ("@" + name if name else "") + _parted(path)[1]


def _parted(text: str) -> Tuple[str, str]:
    """What stands before a sibling's ending, and that ending; empty where there is none."""
    digits = text[-_DIGITS:]
    if text[-_DIGITS - 1 : -_DIGITS] != "~" or len(digits) < _DIGITS or digits.strip(_HEX):
        return text, ""
    return text[: -_DIGITS - 1], text[-_DIGITS - 1 :]
