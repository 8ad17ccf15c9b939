"""Which variables hold a secret, by their names, and such values struck out of JSON and of text.

A value is secret when its name contains TOKEN, KEY, SECRET, PASSWORD, PASSWD or PASSPHRASE in any case, or ends in
``_pass``. Names that end in ``_file``, ``_path`` or ``_dir`` hold a path and are shown, as is ``clusterddp_secrets``,
which holds names only.
"""

import re
from typing import Any, Iterator, Mapping, Match, Sequence

from .redaction import HIDDEN, MIN_SECRET, Redaction, hide_url_passwords

_SECRET = re.compile(r"token|key|secret|passw(?:or)?d|passphrase|_pass$", re.IGNORECASE)
_PATH = re.compile(r"_(?:file|path|dir)$", re.IGNORECASE)
_NAMES_ONLY = "clusterddp_secrets"
_LISTS_OF_NAMES = ("secret", "secrets")  # in plans, records and options
_NUMBER = re.compile(r"-?[0-9.]+(?:[eE][-+]?[0-9]+)?")
# In text a name counts only as environments and settings are printed (``HF_TOKEN=…``, ``'api_key': '…'``): words such
# as "token" and "KeyError:" stand in many lines. Each repetition is bounded, or a line of a megabyte would take hours.
# JSON in JSON has backslashes before its quotes, and a letter in place of a line's end (``\nTOKEN=…``). A quoted value
# ends at its own quote, unless that is escaped; else at the next quote, since in a shell's text no backslash escapes.
_ASSIGNED = re.compile(
    r"(?P<name>(?:\b|(?<=\\[nrt]))"
    r"(?:(?:[A-Z][A-Z0-9_]{0,40}?)?(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|_PASS)[A-Z0-9_]{0,40}"
    r"|(?i:[a-z_]{0,40}?(?:api_?key|_token|_secret|_key|password|passwd))))"
    r"(?P<sign>(?:\\{0,7}[\"'])?[ \t]{0,3}[=:][ \t]{0,3}(?:[bBrRuU]{1,2}(?=\\{0,7}[\"']))?)"
    r"(?:(?P<quote>\\{0,7}[\"'])(?P<quoted>(?:(?!(?P=quote))(?:[^\\\n]|\\[^\n])){%d,4096}|[^\"'\n]{%d,4096})(?P=quote)"
    r"|(?P<open>(?:\\{0,7}[\"'])?)(?P<bare>[^\s\"',;}\]]{%d,}[^\s\"',;}\]\\]))"
    % (MIN_SECRET, MIN_SECRET, MIN_SECRET - 1)
)


def is_secret(key: str, value: object) -> bool:
    """Whether a variable's value must be hidden, by its name."""
    if key == _NAMES_ONLY or value is None or isinstance(value, bool) or not _SECRET.search(key):
        return False
    is_path = bool(_PATH.search(key)) and isinstance(value, str) and "\n" not in value
    return not is_path


def values_by_name(value: Any, *, secret: bool = False) -> Iterator[str]:
    """Every text in a JSON value, at any depth, that is secret by its name (``secret``: the name of all of it is)."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if not (name in _LISTS_OF_NAMES and isinstance(item, (list, tuple))):
                yield from values_by_name(item, secret=secret or is_secret(str(name), item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from values_by_name(item, secret=secret)
        words = [str(item) for item in value if isinstance(item, str)]
        for word, shown in zip(words, without_secret_words(words)):
            if shown != word:
                yield word[len(shown) - len(HIDDEN) :]
    elif secret and isinstance(value, (str, int)) and not isinstance(value, bool):
        yield str(value)


def hide_named(value: Any) -> Any:
    """A JSON value with each text hidden that is secret by its name, also among the words of a command line."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if isinstance(item, str) and is_secret(str(name), item) else hide_named(item)
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        texts = all(isinstance(item, str) for item in value)
        return list(without_secret_words(value)) if texts else [hide_named(item) for item in value]
    return value


def without_secret_words(words: Sequence[str]) -> Iterator[str]:
    """Yield a command's words without values that are secret by their name, and without any of ``--env``."""
    last = ""
    for word in words:
        option = "--env=" if word.startswith("--env=") else ""
        name, equals, value = word[len(option) :].partition("=")
        if equals and (option or last == "--env" or _is_secret_option(name, value)):
            yield option + name + "=" + HIDDEN
        elif last.startswith("-") and last != "--secret" and not word.startswith("-") and _is_secret_option(last, word):
            yield HIDDEN
        else:
            yield word
        last = word


def _is_secret_option(name: str, value: str) -> bool:
    return is_secret(name.strip("-").replace("-", "_"), value)


def hide_assigned(text: str) -> str:
    """A text without the values of secrets that it sets or prints by name; numbers stay (``MAX_TOKENS=1000000``)."""
    return _ASSIGNED.sub(_hidden_unless_number, text)


def strike(value: Any, redaction: Redaction) -> Any:
    """Strike the secrets out of a text, or of the texts in a JSON value: in its own text half an escape might go."""
    if isinstance(value, str):
        return hide_assigned(hide_url_passwords(redaction.text(value)))
    if isinstance(value, Mapping):
        return {str(name): strike(item, redaction) for name, item in value.items()}
    return [strike(item, redaction) for item in value] if isinstance(value, (list, tuple)) else value


def _hidden_unless_number(found: Match[str]) -> str:
    value = found["quoted"] or found["bare"]
    if _NUMBER.fullmatch(value) or not is_secret(found["name"], value):
        return found[0]
    quote = found["quote"] or ""
    return found["name"] + found["sign"] + (quote or found["open"] or "") + HIDDEN + quote
