"""The names of the folders beside a project's workdir. Pure.

``work`` is the project's own; ``work@NAME`` is of a run with ``--workdir NAME``; ``work~0123456789ab`` is a sibling,
for other code beside a live run, named by its digest, and there are siblings of ``work@NAME`` too.
"""

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FRESH = "fresh"  # in place of a NAME: the run's id
_DIGITS = 12  # of a digest
_SIBLING = r"~[0-9a-f]{%d}" % _DIGITS
_BESIDE = re.compile(r"(@%s)?(%s)?" % (NAME.pattern, _SIBLING))


def named(workdir: str, name: str) -> str:
    """The folder ``name`` beside a workdir."""
    return "%s@%s" % (workdir, name)


def sibling_of(workdir: str, digest: str) -> str:
    """The sibling of a workdir for the code of ``digest``."""
    return "%s~%s" % (workdir, digest[:_DIGITS])


def is_sibling(path: str, workdir: str) -> bool:
    """Whether a path is that of a sibling of ``workdir``."""
    return path.startswith(workdir) and bool(re.fullmatch(_SIBLING, path[len(workdir) :]))


def is_beside(path: str, workdir: str) -> bool:
    """Whether a path is that of a folder beside ``workdir``, named or a sibling, or the sibling of a named one."""
    return path.startswith(workdir) and path != workdir and bool(_BESIDE.fullmatch(path[len(workdir) :]))


def ending(path: str, name: str) -> str:
    """What tells a run's folder from the project's own, which has no ending.

    Args:
        path: The run's folder.
        name: Its ``--workdir``, or empty.
    """
    found = re.search(_SIBLING + "$", path)
    return ("@" + name if name else "") + (found.group() if found else "")
