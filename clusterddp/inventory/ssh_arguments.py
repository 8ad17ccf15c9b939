"""Which words of ``ansible_ssh_common_args`` and ``ansible_ssh_extra_args`` are honoured; none is ignored silently."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterddp.errors import InventoryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Flags of ssh, and lower-case keywords of its option -o; ``_KEYWORD_OF`` and ``_FLAG_MEANS``: flag → the same as -o.
_FLAGS_WITH_VALUE = frozenset("BbcDEeFIiJLlmOopQRSWw")
_KEYWORD_OF = {"J": "proxyjump", "i": "identityfile", "p": "port", "l": "user", "S": "controlpath"}
_FLAG_MEANS = {
    "A": ("forwardagent", "yes"),
    "X": ("forwardx11", "yes"),
    "Y": ("forwardx11", "yes"),
    "C": ("compression", "yes"),
}
_NO_EFFECT_FLAGS = frozenset("aqTxkv")
_REFUSED_FLAGS = frozenset("fGgNnOQstVWyEMLRDw")  # they change what the connection is, or hide its errors
_REFUSED = frozenset(
    [
        "remotecommand",
        "sessiontype",
        "requesttty",
        "forkafterauthentication",
        "stdinnull",
        "localcommand",
        "permitlocalcommand",
        "localforward",
        "remoteforward",
        "dynamicforward",
        "tunnel",
    ]
)
_HONOURED = frozenset(
    [
        "proxyjump",
        "proxycommand",
        "userknownhostsfile",
        "globalknownhostsfile",
        "stricthostkeychecking",
        "connecttimeout",
        "identityfile",
        "identitiesonly",
        "port",
        "user",
        "hostname",
        "hostkeyalias",
        "compression",
    ]
)
_SEVERAL = ("userknownhostsfile", "globalknownhostsfile", "setenv")  # their values list several, each with its quotes
_PASSED_BY_US = ("proxyjump", "proxycommand")  # we add one of the two ourselves: ssh refuses both at a time
# We keep one connection a host, probe it ourselves and never prompt behind a display: these change nothing of that.
_NO_EFFECT = frozenset(
    [
        "batchmode",
        "loglevel",
        "serveraliveinterval",
        "serveralivecountmax",
        "tcpkeepalive",
        "connectionattempts",
        "controlmaster",
        "controlpath",
        "controlpersist",
        "visualhostkey",
        "hashknownhosts",
        "updatehostkeys",
        "numberofpasswordprompts",
        "checkhostip",
        "passwordauthentication",
        "kbdinteractiveauthentication",
        "gssapiauthentication",
        "clearallforwardings",
        "exitonforwardfailure",
        "addkeystoagent",
    ]
)
_HARMLESS_VALUES = {  # with these values a keyword changes nothing, so it is accepted
    "forwardagent": ("no",),
    "forwardx11": ("no",),
    "requesttty": ("no",),
    "remotecommand": ("none",),
    "permitlocalcommand": ("no",),
    "sessiontype": ("default",),
    "pubkeyauthentication": ("yes",),
    "addressfamily": ("any",),
    "preferredauthentications": ("publickey",),
}
TOKENS = "%hnprdk"  # the letters of those in the name of a known_hosts file that are replaced here
_UNSUPPORTED = {"forwardagent": "agent forwarding", "forwardx11": "X11 forwarding"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SshArgs:
    """A host's ssh arguments, sorted by how they are used."""

    # lower-case keyword to its value (ssh takes the first), or of identityfile all in the order given
    options: Mapping[str, tuple[str, ...]]
    config_file: str  # the value of ``-F``
    foreign: tuple[str, ...]  # options that only the ``ssh`` program honours
    unused: tuple[str, ...]  # what is never used, worded for a notice
    passed: tuple[str, ...]  # all arguments for the ``ssh`` program, except those that we set ourselves


def parse_ssh_args(arguments: Sequence[str], *, host: str, where: str = "") -> SshArgs:
    """Sort a host's ssh arguments, split as by a shell, by how they are used.

    ``host`` and ``where`` (its position in the inventory) are for errors. Raises ``InventoryError`` for an argument
    that is not an option, or that changes what the connection is.
    """
    options: dict[str, tuple[str, ...]] = {}
    config_file, foreign, unused, passed = "", [], [], []
    for option, keyword, value in each_option(arguments, host, where):
        harmless = _HARMLESS_VALUES.get(keyword, ())
        if keyword == "-F":
            config_file = config_file or value
        elif keyword in _HONOURED:
            before = options.get(keyword, ())
            options[keyword] = (*before, value) if keyword == "identityfile" else before or (value,)
            if keyword in _PASSED_BY_US:
                continue
        elif keyword in _UNSUPPORTED and value.lower() not in harmless:
            unused.append(_UNSUPPORTED[keyword])
            continue
        elif keyword in _REFUSED and value.lower() not in harmless:
            raise _refusal(option, host, where)
        elif keyword not in _NO_EFFECT and value.lower() not in harmless:
            foreign.append(option)
        elif keyword == "controlpath" or keyword.startswith("serveralive"):
            options.setdefault(keyword, (value,))
        passed.append(option)
    return SshArgs(
        options=options,
        config_file=config_file,
        foreign=tuple(foreign),
        unused=tuple(dict.fromkeys(unused)),
        passed=tuple(part for option in passed for part in _as_arguments(option)),
    )


def _refusal(option: str, host: str, where: str) -> InventoryError:
    return InventoryError(
        f"ssh argument {option!r} of {host} cannot be used here",
        where=where,
        remedy="remove it from ansible_ssh_common_args or ansible_ssh_extra_args",
    )


def _as_arguments(option: str) -> tuple[str, ...]:
    """Turn an option, as normalised by ``each_option``, back into arguments."""
    return (option[:2], option[2:].lstrip()) if len(option) > 2 else (option,)


def each_option(arguments: Sequence[str], host: str, where: str) -> Iterator[tuple[str, str, str]]:
    """Yield each option as (as written, keyword, value); flags may be bundled, values attached or separate."""
    queue = list(arguments)
    while queue:
        option = queue.pop(0)
        if len(option) < 2 or not option.startswith("-") or option.startswith("--"):
            raise _refusal(option, host, where)
        flag, rest = option[1], option[2:]
        if flag in _FLAGS_WITH_VALUE:
            if not rest and not queue:
                raise _refusal(option, host, where)
            yield _read_with_value(flag, rest or queue.pop(0), host, where)
            continue
        yield _read_flag(flag, host, where)
        if rest:
            queue.insert(0, f"-{rest}")


def _read_with_value(flag: str, value: str, host: str, where: str) -> tuple[str, str, str]:
    """A flag that has a value, as ``each_option`` yields it; ``-o KEYWORD=VALUE`` by its keyword."""
    option = f"-{flag} {value}"
    if flag in _REFUSED_FLAGS:
        raise _refusal(option, host, where)
    if flag != "o":
        return option, _KEYWORD_OF.get(flag, f"-{flag}"), value
    keyword, separator, setting = value.partition("=")
    if not separator or " " in keyword.strip():
        keyword, _, setting = value.strip().partition(" ")
    keyword, setting = keyword.strip().lower(), setting.strip().removeprefix("=").strip()
    quoted = None if keyword in _SEVERAL else re.fullmatch(r'"([^"]*)"', setting)
    return option, keyword, quoted[1] if quoted else setting


def _read_flag(flag: str, host: str, where: str) -> tuple[str, str, str]:
    """A flag without a value, as ``each_option`` yields it."""
    option = f"-{flag}"
    if flag in _REFUSED_FLAGS:
        raise _refusal(option, host, where)
    if flag in _NO_EFFECT_FLAGS:
        return option, "loglevel", ""
    keyword, value = _FLAG_MEANS.get(flag, (option, ""))
    return option, keyword, value


def only_ssh_expands(text: str) -> bool:
    """Whether a known_hosts path has a token or an environment variable that is expanded only by ssh, not here."""
    return "${" in text or not set(re.findall(r"%(.?)", text)) <= {*TOKENS}


def escape_tokens(text: str) -> str:
    """Escape ``text`` so that the replacement of tokens leaves it unchanged."""
    return text.replace("%", "%%")


def expand_tokens(text: str, values: Mapping[str, str]) -> str:
    """Replace ``%h`` and other tokens of an ssh setting, as ssh does; an unknown one stays."""
    return re.sub(r"%(.)", lambda match: values.get(match[1], match[0]), text)
