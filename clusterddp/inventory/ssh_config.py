"""Converts the hosts of an ssh_config file to variables of an inventory.

HostName, User, Port, IdentityFile and ProxyJump are kept, each by ssh's rule that the first value that applies to a
host counts. Nothing is executed: of Match blocks only `Match all` counts.
"""

from __future__ import annotations

import re
from typing import Any

from clusterddp.errors import InventoryError
from clusterddp.inventory import validate
from clusterddp.inventory.ssh_arguments import expand_tokens

# Its groups: a line's keyword, and the rest of the line.
SSH_CONFIG_LINE = re.compile(r"\s*([A-Za-z][A-Za-z0-9]*)(?:\s*=\s*|\s+)(\S.*?)\s*")
_HOST = re.compile(
    r"^\s*Host(?:\s*=\s*|\s+)(?!(?:max[-_])?slots\s*=)\"?[^\s\"=:]*[A-Za-z*?.][^\n]*$", re.MULTILINE | re.IGNORECASE
)
_JUMP = re.compile(
    r"(?:ssh://)?(?:(?P<user>[\w.-]+)@)?(?P<host>[A-Za-z0-9_][\w.-]*|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]+))?"
)
# Keywords that affect how a host is reached, and have no variable of the inventory.
_UNCONVERTED = {
    "proxycommand", "certificatefile", "identityagent", "userknownhostsfile", "hostkeyalias", "include", "match",
    "bindaddress", "pkcs11provider",
}  # fmt: skip

Settings = dict[str, str]


def is_ssh_config(text: str) -> bool:
    """Whether a text has a line ``Host NAME``, which no launcher's host file has."""
    return bool(_HOST.search(text))


def names_of_ssh_config(text: str) -> list[str]:
    """The names on Host lines that are not patterns."""
    return _host_names(_blocks(text))


def hosts_of_ssh_config(text: str) -> dict[str, dict[str, Any]]:
    """Each host on a Host line that is not a pattern, with its variables; ``InventoryError`` for an unusable value."""
    blocks = _blocks(text)
    return {name: _variables(name, blocks) for name in _host_names(blocks)}


def unconverted_keywords(text: str, *, in_effect: bool) -> list[str]:
    """Keywords in the file that affect how hosts are reached, but that the inventory made of it will not contain.

    ``in_effect``: ssh applies the file itself, so the keys of jump hosts are not lost.
    """
    found = {match[1].lower(): match[1] for line in text.splitlines() if (match := SSH_CONFIG_LINE.fullmatch(line))}
    keywords = [spelled for keyword, spelled in found.items() if keyword in _UNCONVERTED]
    jump_hosts = [] if in_effect else _jump_hosts_with_key(_blocks(text))
    return keywords + [f"IdentityFile of jump host {host}" for host in jump_hosts]


def _jump_hosts_with_key(blocks: list[tuple[list[str], Settings]]) -> list[str]:
    if not any("proxyjump" in settings for _, settings in blocks):  # what follows takes quadratic time
        return []
    jumps = {_effective(name, blocks).get("proxyjump", "none"): None for name in _host_names(blocks)}
    hops = dict.fromkeys(hop for text in jumps for hop in _hops(text, blocks))
    return [hop for hop in hops if _settings_of_hop(hop, blocks).get("identityfile", "none").lower() != "none"]


def _host_names(blocks: list[tuple[list[str], Settings]]) -> list[str]:
    return [name for patterns, _ in blocks for name in patterns if not re.search(r"[*?!]", name)]


def _blocks(text: str) -> list[tuple[list[str], Settings]]:
    """The blocks of the file: patterns, and the first value of each keyword below them."""
    blocks: list[tuple[list[str], Settings]] = [(["*"], {})]
    for line in text.splitlines():
        match = SSH_CONFIG_LINE.fullmatch(line)
        if match is None:
            continue
        keyword, value = match[1].lower(), _unquoted(match[2])
        if keyword == "host":
            blocks.append((value.replace('"', "").split(), {}))
        elif keyword == "match":
            blocks.append((["*"] if value.lower() == "all" else [], {}))
        else:
            blocks[-1][1].setdefault(keyword, value)
    return blocks


def _unquoted(value: str) -> str:
    quoted = re.fullmatch(r'"([^"]*)"\s*(?:#.*)?', value)
    return quoted[1] if quoted else re.sub(r"\s+#.*", "", value)


def _effective(name: str, blocks: list[tuple[list[str], Settings]]) -> Settings:
    """The settings that apply to a host: the first value of each keyword in the blocks that match it."""
    effective: Settings = {}
    for patterns, settings in blocks:
        refused = any(_matches(name, pattern[1:]) for pattern in patterns if pattern.startswith("!"))
        if not refused and any(_matches(name, pattern) for pattern in patterns):
            effective = {**settings, **effective}
    return effective


def _matches(name: str, pattern: str) -> bool:
    if "*" not in pattern and "?" not in pattern:  # a large file has thousands of them, for each of its hosts
        return name == pattern
    plain = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return bool(re.fullmatch(plain, name))


def _variables(name: str, blocks: list[tuple[list[str], Settings]]) -> dict[str, Any]:
    """A host's settings as variables of an inventory."""
    where, settings = f"Host {name}", _effective(name, blocks)
    address = expand_tokens(settings.get("hostname", name), {"%": "%", "h": name, "n": name})
    user, port = settings.get("user"), settings.get("port")
    tokens = {"d": "~", "h": address, "n": name} | ({} if user is None else {"r": user})
    variables = {
        "ansible_host": None if address == name else validate.address(address, where),
        "ansible_user": None if user is None else validate.user_name(user, where),
        "ansible_port": None if port is None else _port(port, where),
        "ansible_ssh_private_key_file": _key_file(settings.get("identityfile", "none"), tokens, where),
        "ansible_ssh_common_args": _jump_arguments(settings.get("proxyjump", "none"), where, blocks),
    }
    return {variable: value for variable, value in variables.items() if value is not None}


def _key_file(path: str, tokens: dict[str, str], where: str) -> str | None:
    if path.lower() == "none":
        return None
    key = expand_tokens(path, tokens)
    if re.search(r"[%$]", key):
        raise InventoryError(f"IdentityFile {key} cannot be kept", where=where, remedy="write its path in full")
    return key


def _jump_arguments(text: str, where: str, blocks: list[tuple[list[str], Settings]]) -> str | None:
    """A ProxyJump value as an argument of ssh; None for ``none``."""
    hops = ",".join(_jump(hop, where, blocks) for hop in _hops(text, blocks))
    if not hops:
        return None
    if not re.fullmatch(r"[\w.@:,\[\]-]+", hops):
        raise InventoryError(f"ProxyJump {hops} cannot be kept", where=where, remedy="write it as user@host:port")
    return f"-o ProxyJump={hops}"


def _hops(text: str, blocks: list[tuple[list[str], Settings]]) -> list[str]:
    """Return all jump hosts of a ProxyJump value, with those that the first one itself needs before it."""
    hops: list[str] = []
    while text.lower() != "none":
        before = [hop.strip() for hop in text.split(",")]
        if set(before) & set(hops):  # a circle, which ssh cannot use
            break
        hops = before + hops
        text = _settings_of_hop(hops[0], blocks).get("proxyjump", "none")
    return hops


def _settings_of_hop(hop: str, blocks: list[tuple[list[str], Settings]]) -> Settings:
    """The file's settings for a jump host."""
    match = _JUMP.fullmatch(hop)
    return _effective(match["host"], blocks) if match else {}


def _port(text: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise InventoryError(f"Port {text} is not from 1 to 65535", where=where, remedy="correct it")
    return int(text)


def _jump(hop: str, where: str, blocks: list[tuple[list[str], Settings]]) -> str:
    """A jump host with the file's settings for it, since the inventory is used without that file."""
    match = _JUMP.fullmatch(hop)
    if match is None:
        raise InventoryError(f"ProxyJump {hop} cannot be kept", where=where, remedy="write it as user@host:port")
    given_user, host, given_port = match.groups()
    settings = _settings_of_hop(hop, blocks)
    address = validate.address(expand_tokens(settings.get("hostname", host.strip("[]")), {"%": "%", "h": host}), where)
    user, port = given_user or settings.get("user"), given_port or settings.get("port")
    shown = f"[{address}]" if ":" in address and port else address
    who = f"{validate.user_name(user, where)}@" if user else ""
    return f"{who}{shown}" + (f":{_port(port, where)}" if port else "")
