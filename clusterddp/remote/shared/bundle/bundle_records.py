"""The operation ``bundle``: what a host sends of a run for a bundle.

Its archive (archive.py) has a member ``INDEX``, which says what the others are, and what could not be had and why.
"""

from typing import NamedTuple, Tuple

from ..schema.fields import Fields
from ..schema.record import field, many, record

INDEX = "index.json"  # a BundleIndex
# Of an answer's hidden values, as each is looked for in every text, in some twenty forms:
MAX_HIDDEN, MAX_HIDDEN_LETTERS, MAX_HIDDEN_FORMS = 64, 8 << 10, 1500


@record
class BundleRequest(NamedTuple):
    """What is asked of a host."""

    spools: Tuple[str, ...] = field(Fields.texts)  # the run's folders on this host, the newest attempt first
    room: int = field(Fields.number)  # bytes of output, of all workers and agents together
    machine: bool = field(Fields.flag)  # the kernel's messages and nvidia-smi too: the workers ran on this machine


@record
class BundleAnswer(NamedTuple):
    """What a host sends."""

    archive: str = field(Fields.any_text)  # in base64
    # values of the plan's and the workers' variables whose names say that they are secret: the operator strikes them
    # out of what it adds itself, and writes them nowhere
    hidden: Tuple[str, ...] = field(Fields.texts)


@record
class BundlePart(NamedTuple):
    """One member of the archive; ``note``: what is left out of it."""

    name: str = field(Fields.text)
    what: str = field(Fields.text)
    note: str = field(Fields.text, default="")


@record
class BundleIndex(NamedTuple):
    """The members, and what is missing: pairs of what and why."""

    parts: Tuple[BundlePart, ...] = field(many(BundlePart))
    missing: Tuple[Tuple[str, str], ...] = field(Fields.text_pairs)
