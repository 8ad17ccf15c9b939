"""The names of the folders beside a project's workdir. Pure.

``work`` is the project's own; ``work@NAME`` is of a run with ``--workdir NAME``.
"""

FRESH = "fresh"  # in place of a NAME: the run's id
_OTHERS = dict.fromkeys(map(ord, "._-"), "0")  # that may stand in a NAME


def is_name(text: str) -> bool:
    """Whether it can be the NAME of a folder."""
    first = text[:1]
    return text.isascii() and first.isalnum() and len(text) <= 64 and text.translate(_OTHERS).isalnum()


def named(workdir: str, name: str) -> str:
    """The folder ``name`` beside a workdir."""
    return "%s@%s" % (workdir, name)


def is_beside(path: str, workdir: str) -> bool:
    """Whether a path is that of a folder ``work@NAME`` beside ``workdir``."""
    end = path[len(workdir) :]
    return path.startswith(workdir) and end.startswith("@") and is_name(end[1:])
