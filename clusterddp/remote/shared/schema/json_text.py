"""Read and write JSON without importing the package ``json``, which imports ``re`` and ``enum``.

Both directions use the C functions that ``json`` itself calls. What these do not accept goes to ``json``, and so does
everything where an interpreter lacks them, so values and errors are those of ``json``.
"""

import errno
import math
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

MAX_DIGITS = 20  # of a whole number: 64 bits
_BLANKS = " \t\n\r"  # JSON's own


def to_json(value: Any) -> str:
    """Write a value as JSON in one line, without blanks."""
    if _encode is not None:
        return "".join(_encode(value, 0))
    import json

    return json.dumps(value, separators=(",", ":"))


def from_json(text: str) -> Any:
    """Read a JSON value: finite numbers, integers of at most 64 bits, each key once.

    Raises ValueError if the text is no such value; RecursionError if it is nested too deep.
    """
    if _scan is not None:
        start = len(text) - len(text.lstrip(_BLANKS))
        try:
            value, end = _scan(text, start)
        except StopIteration:
            end = -1
        if end > 0 and not text[end:].strip(_BLANKS):
            return value
    import json

    hooks: Dict[str, Any] = {name: getattr(_Reading, name) for name in _HOOKS}
    return json.JSONDecoder(**hooks).decode(text)


def read_json(path: str) -> Any:
    """Read the JSON value in a file, as ``from_json`` does; None if there is no such file.

    It does not block where somebody has put a pipe in the file's place. Raises OSError; ValueError if the file holds no
    such value.
    """
    try:
        with open(path, encoding="utf-8", opener=_open_nonblocking) as stream:
            return from_json(stream.read())
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
    except RecursionError:
        raise ValueError("%s is nested too deep" % path) from None


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def encodable(value: Any, *, paths: bool = False) -> Any:
    """Make every text in a JSON value encodable as UTF-8: lone surrogates become U+FFFD.

    The value is nested no deeper than the reader allows. With ``paths`` texts may be paths, whose non-UTF-8 bytes are
    kept as U+DC80 to U+DCFF (surrogateescape). Raises ValueError if a path holds another surrogate, or two keys of an
    object become one.
    """
    if type(value) is str:
        return _encodable_text(value, paths)
    if type(value) is list:
        return [encodable(one, paths=paths) for one in value]
    if type(value) is dict:
        made = {_encodable_text(key, paths): encodable(one, paths=paths) for key, one in value.items()}
        if len(made) != len(value):
            raise ValueError("a key stands twice")
        return made
    return value


def _encodable_text(text: str, paths: bool) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8", "surrogateescape" if paths else "strict")
    except UnicodeEncodeError:
        if paths:
            raise ValueError("a path holds half of a character") from None
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class _Reading:
    """The settings of the C scanner, named as in json.JSONDecoder, which reads them as attributes."""

    strict = True
    object_hook = None

    @staticmethod
    def object_pairs_hook(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands twice")
        return found

    @staticmethod
    def parse_int(text: str) -> int:
        if len(text) > MAX_DIGITS:
            raise ValueError("a number has too many digits")
        return int(text)

    @staticmethod
    def parse_float(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise ValueError("a number is not finite")
        return value

    parse_constant = parse_float


_HOOKS = ("object_pairs_hook", "parse_int", "parse_float", "parse_constant")


def _no_json(value: object) -> Any:
    raise TypeError("a %s cannot be JSON" % type(value).__name__)


def _c_functions() -> "Tuple[Optional[Callable[[str, int], Any]], Optional[Callable[[Any, int], Any]]]":
    """The C scanner and encoder, or None for both."""
    try:
        from _json import encode_basestring_ascii, make_encoder, make_scanner

        # No check for circular references; default, strings, indent, separators; sort_keys, skipkeys, allow_nan.
        encode = make_encoder(None, _no_json, encode_basestring_ascii, None, ":", ",", False, False, True)
        reading: Any = _Reading
        return make_scanner(reading), encode
    except (ImportError, TypeError):  # not CPython, or a version with another interface
        return None, None


_scan, _encode = _c_functions()
