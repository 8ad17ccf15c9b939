"""Writes an inventory's host as an ssh_config block, so that ssh, scp, rsync and editors reach it as we do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterddp.inventory.ssh_arguments import each_option, escape_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterddp.inventory import HostEntry

_FLAGS = {"-4": ("AddressFamily", "inet"), "-6": ("AddressFamily", "inet6"), "-F": ("Include", "")}
_SPELLING = {
    name.lower(): name
    for name in (
        "Port", "User", "ProxyJump", "ProxyCommand", "IdentityFile", "IdentitiesOnly", "UserKnownHostsFile",
        "GlobalKnownHostsFile", "StrictHostKeyChecking", "ConnectTimeout", "HostName", "HostKeyAlias", "ControlPath",
        "CertificateFile", "Compression",
    )
}  # fmt: skip
# Keywords whose value is one path; any other value is written as it is, for its words and quotes are ssh's to read.
_PATHS = (
    "-F", "identityfile", "certificatefile", "controlpath", "identityagent", "pkcs11provider", "securitykeyprovider",
    "xauthlocation", "revokedhostkeys",
)  # fmt: skip


def ssh_config_block(entry: HostEntry) -> str:
    """Return a host's block for an ssh_config file, or a comment for a host that is this machine.

    It has only what the inventory sets: the rest, even the address, is left to the user's own ssh_config. Raises
    InventoryError if an ssh argument cannot be used.
    """
    if entry.connection == "local":
        return f"# {entry.name} is this machine"
    return "\n".join([f"Host {entry.name}", *(f"  {keyword} {value}" for keyword, value in _settings(entry))])


def _settings(entry: HostEntry) -> Iterator[tuple[str, str]]:
    """Yield keywords and values; if a keyword occurs twice, ssh takes the first."""
    if entry.address != entry.name:
        yield "HostName", escape_tokens(entry.address)  # of a zone, as in fe80::1%eth0; ssh expands %h there
    if entry.port:
        yield "Port", str(entry.port)
    if entry.user:
        yield "User", entry.user
    if entry.identity_file:
        yield "IdentityFile", _quoted(str(entry.identity_file))
    for option, keyword, value in each_option(entry.ssh_args, entry.name, entry.where):
        name, fixed = _FLAGS.get(option[:2], (_SPELLING.get(keyword, keyword), ""))
        if fixed or (value and not name.startswith("-")):
            yield name, fixed or (_quoted(value) if keyword in _PATHS else value)


def _quoted(value: str) -> str:
    return f'"{value}"' if " " in value else value
