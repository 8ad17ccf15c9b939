"""Secret values removed from texts that we keep, send or show, without any input or output.

    redaction = Redaction(values)
    redaction.text("401 for hunter2-token")                # "401 for ********"
    redaction.text(end, begins=False)                      # of a text whose beginning was cut off

A value is found as it is, and as Python, JSON, a URL or base64 write it. Each line of a value with several lines is
searched for too: a message often shows one of them.
"""

import functools
import itertools
import json
import re
from typing import Any, Iterable, Iterator, List, Set, Tuple

HIDDEN = "********"
MIN_SECRET = 6  # letters of a value, or of a line of one: a shorter one occurs in too many words by chance
MIN_PARTIAL = 4  # letters of a part of a value that was cut off at an end of the text; shorter ones stay
ELLIPSIS = "…"  # replaces the middle of a text that was too long (shortening.py, worker/hook/sitecustomize.py)
MAX_ELLIPSES = 200  # most that are examined; a text of ours has one or two
MAX_OCCURRENCES = 10_000  # of a value in one text: what a host sends may be made to cost much
_PRIME, _BASE = (1 << 61) - 1, 1_000_003  # of the hashes of beginnings
_URL_PASSWORD = re.compile(r"(://[^/@\s:]*:)[^/@\s]+@")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class Redaction:
    """The secret values that no text of ours may hold.

    Values shorter than ``least`` stay in the text, and so do lines shorter than LEAST of a value with several lines.
    """

    def __init__(self, values: Iterable[str], least: int = MIN_SECRET) -> None:
        forms: Set[str] = set()
        for value in values:
            forms.update(form for part in _searched_parts(value.strip(), least) for form in _forms(part))
        self.forms = sorted(forms, key=len)

    @functools.cached_property
    def _beginnings(self) -> "_Beginnings":
        """For texts that were cut off; few are, so they are made at first use."""
        return _Beginnings(self.forms)

    @functools.cached_property
    def _ends(self) -> "_Beginnings":
        return _Beginnings(form[::-1] for form in self.forms)

    def text(self, text: str, *, begins: bool = True, ends: bool = True) -> str:
        """The text with each occurrence of a value replaced by ``HIDDEN``.

        Where the text does not begin or end with its true beginning or end (``begins``, ``ends``), the last part of a
        value may come first, or the first part last. Parts of a value beside ``…``, where the middle of a text was left
        out, are replaced too. Of a text that holds a value more than ``MAX_OCCURRENCES`` times nothing is left.
        """
        spans: List[Tuple[int, int]] = []
        for form in self.forms:
            found = [(at, at + len(form)) for at in itertools.islice(_occurrences(form, text), MAX_OCCURRENCES + 1)]
            if len(found) > MAX_OCCURRENCES:
                return HIDDEN
            spans = _join_spans([*spans, *found]) if found else spans
        if not begins:
            spans.append((0, self._ends.longest_at_end(text[: self._ends.longest][::-1])))
        if not ends:
            spans.append((len(text) - self._beginnings.longest_at_end(text), len(text)))
        spans += self._beside_ellipsis(text)
        parts, done = [], 0
        for start, end in _join_spans([span for span in spans if span[0] < span[1]]):
            parts += [text[done:start], HIDDEN]
            done = end
        return "".join([*parts, text[done:]])

    def _beside_ellipsis(self, text: str) -> Iterator[Tuple[int, int]]:
        """The spans of parts of a value next to ``…``, which replaces the omitted middle of a text.

        A part ends at the next ``…``, so no letter is looked at more than twice.
        """
        before, *others = text.split(ELLIPSIS, MAX_ELLIPSES) if self.forms else [text]
        at = len(before)
        for behind in others:
            yield at - self._beginnings.longest_at_end(before), at
            yield at + 1, at + 1 + self._ends.longest_at_end(behind[: self._ends.longest][::-1])
            at, before = at + 1 + len(behind), behind

    def value(self, value: Any, longest: int = 1 << 30) -> Any:
        """A JSON value without secrets in its texts, field names aside; a text of ``longest`` characters was cut."""
        if isinstance(value, str):
            whole = len(value) < longest
            return self.text(value, begins=whole, ends=whole)
        if isinstance(value, dict):
            return {name: self.value(entry, longest) for name, entry in value.items()}
        return [self.value(entry, longest) for entry in value] if isinstance(value, list) else value


def hide_url_passwords(text: str) -> str:
    """The text without the passwords of users in URLs (``https://user:password@host``)."""
    return _URL_PASSWORD.sub(r"\1%s@" % HIDDEN, text)


def _searched_parts(value: str, least: int) -> Iterator[str]:
    """A value and, if it has several lines, each of them, except the first and last line of a key in PEM."""
    if len(value) >= least:
        yield value
    if "\n" in value:
        yield from (
            line for line in map(str.strip, value.split("\n")) if len(line) >= MIN_SECRET and line[:5] != "-----"
        )


def _forms(value: str) -> Iterator[str]:
    """A value in the notations in which programs write it."""
    data = value.encode("utf-8", "surrogatepass")
    yield value
    yield value.replace("\n", " ")  # a command line, or a message in one line
    for escaped in (
        repr('"' + value)[2:-1],
        repr(b'"' + data)[3:-1],
    ):  # what stands around decides which quotes are escaped
        yield escaped
        yield escaped.replace("\\'", "'")
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    for safe in ("", "/"):
        plain = _UNRESERVED.union(safe)
        quoted = "".join(chr(byte) if chr(byte) in plain else "%%%02X" % byte for byte in data)
        yield quoted
        yield quoted.replace("%20", "+")
        yield re.sub("%..", lambda escape: escape[0].lower(), quoted)
    yield from _base64(data)


def _base64(data: bytes) -> Iterator[str]:
    """The base64 letters that a value determines, for each of its three possible offsets in what is encoded."""
    import binascii  # most runs have no secrets

    for before in range(3):
        end = (before + len(data)) * 8 // 6  # whole letters
        text = binascii.b2a_base64(b"\0" * before + data, newline=False).decode()[(before * 8 + 5) // 6 : end]
        if len(text) >= MIN_SECRET:
            yield text
            yield text.replace("+", "-").replace("/", "_")


def _occurrences(form: str, text: str) -> Iterator[int]:
    at = text.find(form)
    while at >= 0:
        yield at
        at = text.find(form, at + 1)


class _Beginnings:
    """The beginnings of some forms, all looked for at once at the end of a text.

    Hashes are compared, so a letter of the text costs the same whatever the forms are; equal hashes of different texts
    would only hide more.
    """

    def __init__(self, forms: Iterable[str]) -> None:
        self._hashes: Set[int] = set()
        self.longest = 0  # letters
        for form in forms:
            self.longest = max(self.longest, len(form))
            found, power = 0, 1
            for length, letter in enumerate(form, 1):
                found = (found + (ord(letter) + 1) * power) % _PRIME
                power = power * _BASE % _PRIME
                if length >= MIN_PARTIAL:
                    self._hashes.add(found)

    def longest_at_end(self, text: str) -> int:
        """Return how many letters at the text's end are the beginning of a form: the most, of at least MIN_PARTIAL."""
        longest = found = 0
        for length, letter in enumerate(text[: -self.longest - 1 : -1], 1):
            found = (found * _BASE + ord(letter) + 1) % _PRIME
            if found in self._hashes:
                longest = length
        return longest


def _join_spans(spans: List[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """The spans, with those that overlap or touch joined."""
    joined: List[Tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
