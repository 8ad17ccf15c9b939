"""The names of workdirs: where they lie, and those beside a project's own. Pure.

``work`` is the project's own; ``work@NAME`` belongs to runs with ``--workdir NAME``.
"""

WORKDIRS = "~/clusterddp"  # where a workdir lies on a host unless the inventory says another
FRESH = "fresh"  # in place of a NAME: the run's id
_OTHERS = dict.fromkeys(map(ord, "._-"), "0")  # further characters allowed in a NAME


def is_name(text: str) -> bool:
    """Whether a text is a valid NAME."""
    first = text[:1]
    return text.isascii() and first.isalnum() and len(text) <= 64 and text.translate(_OTHERS).isalnum()


def named_workdir(workdir: str, name: str) -> str:
    """Return the path of the folder ``name`` beside a workdir."""
    return "%s@%s" % (workdir, name)


def is_named(path: str, workdir: str) -> bool:
    """Whether a path is a folder ``work@NAME`` beside ``workdir``."""
    end = path[len(workdir) :]
    return path.startswith(workdir) and end.startswith("@") and is_name(end[1:])
