"""Sort host names, and fold them into ranges in the inventory's notation: ``gpu[00:31]``. Pure."""

from typing import TYPE_CHECKING, Iterable, List, Optional, Sequence, Union

if TYPE_CHECKING:
    import re

_NUMBERED = r"(.*?)(\d{1,9})(\D*)"


def sorted_names(names: Iterable[str]) -> List[str]:
    """Sort names by their numbers: ``gpu9`` before ``gpu10``."""
    return sorted(names, key=_pieces)


def folded_names(names: Sequence[str], separator: str = ", ") -> str:
    """Sort names and fold consecutive ones: ``gpu[00:31]``, which ``--limit`` accepts; bare numbers become ``0-7``."""
    return separator.join(folded_words(names))


def folded_words(names: Sequence[str]) -> List[str]:
    """Like ``folded_names``, as a list with one item per range and per name outside of a range."""
    runs: List[List[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return [word for run in runs for word in _words(run)]


def _follows(before: str, name: str) -> bool:
    """Whether a name has the next number after another's, and is otherwise the same."""
    one, other = _numbered(before), _numbered(name)
    if not one or not other or (one[1], one[3]) != (other[1], other[3]) or int(other[2]) != int(one[2]) + 1:
        return False
    padded = one[2].startswith("0") or other[2].startswith("0")
    return len(one[2]) == len(other[2]) or not padded


def _numbered(name: str) -> "Optional[re.Match[str]]":
    """A name's text before its number, the number, the text after it; None without a number."""
    import re  # most processes on hosts that can name hosts name none

    return re.fullmatch(_NUMBERED, name)


def _words(run: Sequence[str]) -> Sequence[str]:
    """Consecutive names as a range; one or two names stay as they are."""
    first, last = _numbered(run[0]), _numbered(run[-1])
    if len(run) < 3 or not first or not last:
        return run
    if not first[1] + first[3]:
        return [f"{first[2]}-{last[2]}"]
    return [f"{first[1]}[{first[2]}:{last[2]}]{first[3]}"]


def _pieces(name: str) -> List[Union[int, str]]:
    """A name as text and numbers in turn, to sort by."""
    import re

    pieces = re.split("([0-9]{1,9})", name)  # every second one is a number
    return [int(piece) if index % 2 else piece for index, piece in enumerate(pieces)]
