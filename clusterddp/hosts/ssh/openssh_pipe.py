"""The way to a host through the ``ssh`` program: its arguments, when it is connected, what its errors mean.

The host is given to ssh by the user's name for it, so that the blocks of ssh's configuration for that name apply, and
ssh finds the same address as for the ``Target``. Host key policy, jump hosts and keys are those of the ``Target``, set
first on ssh's command line, where the first setting wins. None of our connections becomes a ControlMaster; a live one
is used.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import AuthenticationError, HostError, HostKeyError, UnreachableError, UsageError
from clusterddp.hosts.ssh.config import config_options, ssh_environment
from clusterddp.hosts.ssh.known_hosts import PresentedKey, unknown_key_error
from clusterddp.hosts.ssh.pipes import ChildPipe, DroppedError
from clusterddp.hosts.ssh.target import login_remedy, unlock_remedy
from clusterddp.inventory.ssh_arguments import escape_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterddp.hosts.ssh.target import Target

_CONNECTED = "clusterddp-connected"
# ssh runs this itself once it is logged in: the only sign of success that needs no message from the host.
_REPORT_CONNECTED = f"exec /bin/sh -c 'echo {_CONNECTED} >&2'"
_FIXED_SETTINGS = {
    "BatchMode": "yes",
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "ControlMaster": "no",
    "ControlPersist": "no",
    "RemoteCommand": "none",
    "LogLevel": "ERROR",
    "NoHostAuthenticationForLocalhost": "no",
    "UpdateHostKeys": "no",
}
_DROPPED = re.compile(
    r"kex_exchange_identification:|ssh_exchange_identification:|Connection (closed|reset) by", re.IGNORECASE
)
_REVOKED = re.compile(  # revoked in known_hosts, by RevokedHostKeys, or not known
    r"host key for (?P<host>\S+) is marked as revoked"
    r"|^Host key (?P<key>\S+ \S+) revoked by file (?P<file>[^\r\n]+)"
    r"|^Error checking host key \S+ \S+ in revoked keys file (?P<list>[^\r\n]+): (?P<why>[^\r\n]+)",
    re.MULTILINE,
)
_UNREACHABLE = re.compile(
    r"Could not resolve hostname [^\n]*|connect to host [^\n]*|Connection timed out[^\n]*"
    r"|Connection to [^\n]* timed out|no matching [^\n]* found[^\n]*"
    r"|stdio forwarding failed|channel \d+: open failed[^\n]*"
)


def open_pipe(target: Target, command: str, program: str) -> ChildPipe:
    """Start ``command`` on ``target`` by a child ``ssh``; returns once it is logged in."""
    argv = [program, *_options(target), *_user_options(target), "--", target.alias, command]
    pipe = ChildPipe(argv, env=ssh_environment(), marker=f"{_CONNECTED}\n".encode())
    # ssh's own ConnectTimeout is shorter; this one applies if a ProxyCommand never answers.
    timeout = 2 * target.connect_timeout + 5
    began = time.monotonic()
    if target.live_master or pipe.wait_for_marker(timeout):  # a master is logged in, and runs no LocalCommand
        return pipe
    late = time.monotonic() - began >= timeout
    pipe.close()
    raise _error_for(pipe.stderr(), target, program, late=late)


def master_arguments(target: Target, socket: str, seconds: int, jump_socket: str, *, asks: bool) -> list[str]:
    """Arguments for an ssh that logs in, leaves a master connection behind, and ends.

    The master ends ``seconds`` after its last session. ``jump_socket``: that of the jump host's master. ``asks``: it
    may ask the user.
    """
    settings = {"ControlMaster": "yes", "ControlPersist": str(seconds), "PermitLocalCommand": "no"}
    settings["BatchMode"] = "no" if asks else "yes"
    if target.via and not target.proxy:
        settings["ProxyCommand"] = _jump_command(target.via, jump_socket)
    # The last -S counts, and any counts more than ControlPath: the user's own say where masters of the user's own are.
    return [*_options(target, settings), *target.passed, "-N", "-S", socket, "--", target.alias]


def unreachable_error(stderr: str, target: Target, *, late: bool) -> HostError | UsageError | None:
    """Return the error if ssh reported that the host is unreachable, or timed out (``late``); else None."""
    if not (late or _DROPPED.search(stderr) or _UNREACHABLE.search(stderr)):
        return None
    return _error_for(stderr, target, "ssh", late=late)


def _options(target: Target, changed: Mapping[str, str] | None = None) -> list[str]:
    """Options for every ssh we start: the host's own and each jump host's; ``changed`` has settings of one of them."""
    settings = {
        **_FIXED_SETTINGS,
        "ConnectTimeout": f"{max(1, round(target.connect_timeout))}",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "3",
        "StrictHostKeyChecking": "accept-new" if target.accept_new else "yes",
        "UserKnownHostsFile": escape_tokens(_quote_paths(target.known_hosts)),
        "GlobalKnownHostsFile": _quote_paths(target.system_hosts),
    }
    if target.only_named_keys:
        settings["IdentitiesOnly"] = "yes"
    if target.proxy:
        settings["ProxyCommand"] = escape_tokens(target.proxy)
    elif target.via:
        settings["ProxyCommand"] = _jump_command(target.via)
    elif not target.live_master:
        settings["ProxyCommand"] = "none"
    if not target.live_master:
        settings["ControlPath"] = "none"  # one that hangs would hold us
    settings |= changed or {}
    files = [argument for path in target.key_files for argument in ("-i", escape_tokens(str(path)))]
    where = ["-p", str(target.port), "-l", target.user]
    base = config_options(target.config_file)
    return ["-T", *base, *(f"-o{name}={value}" for name, value in settings.items()), *files, *where]


def _user_options(target: Target) -> list[str]:
    """The user's own ssh arguments, of which -S counts more than ControlPath, the last one most."""
    no_master = [] if target.live_master else ["-S", "none"]
    return ["-oPermitLocalCommand=yes", f"-oLocalCommand={_REPORT_CONNECTED}", *target.passed, *no_master]


def _jump_command(via: Target, socket: str = "") -> str:
    """Build the ProxyCommand that goes through ``via`` and, by its own options, through the jump hosts before it.

    ``socket``: that of a master of ``via``, which is used if it lives.
    """
    master = ["-S", socket] if socket else []
    command = [escape_tokens(argument) for argument in ("ssh", *master, *_options(via))]
    return shlex.join([*command, "-W", "[%h]:%p", "--", via.alias])


def _quote_paths(paths: tuple[Path, ...]) -> str:
    return " ".join(f'"{path}"' for path in paths)


def _error_for(stderr: str, target: Target, program: str, *, late: bool) -> HostError | UsageError:
    """Turn ssh's last messages into an error for the user."""
    lines = _lines(stderr)
    if revoked := _REVOKED.search(stderr):
        return _revoked_key_error(revoked, target)
    if "HOST IDENTIFICATION HAS CHANGED" in stderr:
        return _changed_key_error(stderr, target)
    if "ost key verification failed" in stderr or "host key is known for" in stderr:
        return _unknown_key_error(stderr, target, program)
    if "Permission denied" in stderr or "Too many authentication failures" in stderr:
        return refusal_error(stderr, target)
    if found := _UNREACHABLE.search(stderr):
        return UnreachableError(
            target.name, f"ssh: {found[0].strip()}", remedy="check the address, the port and that sshd runs there"
        )
    if "onfiguration option" in stderr or "command-line line" in stderr or "unknown option" in stderr:
        return UsageError(f"{target.name}: ssh refuses its arguments: {lines[0]}")
    if target.proxy:
        its_own = [line for line in lines if not _DROPPED.search(line)] or lines
        return UnreachableError(target.name, f"ProxyCommand to {target.endpoint} failed: {its_own[0]}")
    if _DROPPED.search(stderr):
        return DroppedError(
            target.name, f"ssh: {lines[0]}", remedy="too many logins at once? raise MaxStartups in its sshd_config"
        )
    why = "no login in time" if late else lines[-1]
    return UnreachableError(target.name, f"ssh to {target.endpoint}: {why}")


def _lines(stderr: str) -> list[str]:
    return [line.strip() for line in stderr.splitlines() if line.strip()] or ["ssh said nothing"]


def _revoked_key_error(found: re.Match[str], target: Target) -> HostKeyError:
    """Build the error for a revoked key, of the host or a jump host: ssh names the host only for known_hosts."""
    if found["why"]:
        return HostKeyError(
            target.name,
            f"whether its host key is revoked cannot be found out: {found['list']}: {found['why']}",
            remedy="correct RevokedHostKeys in the ssh configuration",
        )
    marked = f"the host key of {found['host']} is revoked in known_hosts"
    listed = f"host key {found['key']} is revoked by {found['file']}"
    message = marked if found["host"] else listed
    return HostKeyError(target.name, message, remedy="do not connect until the host has a new key")


def _changed_key_error(stderr: str, target: Target) -> HostKeyError:
    found = re.search(r"Offending .* key in (\S+:\d+)", stderr)
    where = f"; the known one is in {found[1]}" if found else ""
    path = found[1].rpartition(":")[0] if found else str(target.known_hosts[0])
    name = re.search(r"ssh-keygen -f \S+ -R [\"']?([^\"'\s]+)", stderr)
    return HostKeyError(
        target.name,
        f"the host key of {target.endpoint} has changed{where}",
        remedy=f"if the host was set up anew: ssh-keygen -f {shlex.quote(path)}"
        f" -R {shlex.quote(name[1] if name else target.key_names[0])}",
    )


def _unknown_key_error(stderr: str, target: Target, program: str) -> HostKeyError:
    """Build the error for an unknown host key, with the key if it can be fetched."""
    shown = _fetch_host_key(target, program)
    if shown is not None:
        return unknown_key_error(shown, target.known_hosts[0])
    named = re.search(r"host key is known for (\S+)", stderr)
    who = named[1] if named else target.endpoint
    return HostKeyError(
        target.name,
        f"the host key of {who} is unknown",
        remedy="`clusterddp up … --accept-new-host-keys`, or log in there once by hand with ssh",
    )


def _fetch_host_key(target: Target, program: str) -> PresentedKey | None:
    """Get the key that ``target`` presents, from an ssh that records it in an empty file and does not log in."""
    with tempfile.TemporaryDirectory(prefix="clusterddp-") as folder:
        file = Path(folder) / "known_hosts"
        learn = [
            f"-oUserKnownHostsFile={file}",
            "-oGlobalKnownHostsFile=/dev/null",
            "-oStrictHostKeyChecking=accept-new",
            "-oHashKnownHosts=no",
            "-oPubkeyAuthentication=no",
            "-oPreferredAuthentications=none",
        ]
        argv = [program, *learn, *_options(target), *target.passed, "-S", "none", "--", target.alias, "exit"]
        pipe = ChildPipe(argv, env=ssh_environment())
        pipe.wait_for_marker(2 * target.connect_timeout + 5)
        pipe.close()
        fields = file.read_text().split() if file.exists() else []
    if len(fields) < 3:
        return None
    return PresentedKey(host=target.name, names=target.key_names, type=fields[1], blob=fields[2])


def refusal_error(stderr: str, target: Target) -> AuthenticationError:
    """Build the error for a refused login from ssh's last messages."""
    lines = _lines(stderr)
    denied = next((line for line in lines if "ermission denied" in line or "Too many" in line), lines[-1])
    keys = ", ".join(map(str, target.key_files)) or "the agent's keys"
    mode = " (a key file others can read is not used)" if "UNPROTECTED PRIVATE KEY" in stderr else ""
    any_key = bool(target.key_files or os.environ.get("SSH_AUTH_SOCK"))
    message = f"{target.user}@{target.endpoint} refused {keys}{mode}: {denied}"
    remedy = login_remedy(target, keys=any_key)
    if locked := _locked_key(target.key_files):
        message += f"; {locked} has a passphrase, which the ssh program may not ask for here"
        remedy = unlock_remedy(locked)
    return AuthenticationError(target.name, message, remedy=remedy)


def _locked_key(files: Sequence[Path]) -> Path | None:
    """Return the first of these private keys that has a passphrase; None if the agent holds that key."""
    agent_keys = _output_of("ssh-add", "-L") if os.environ.get("SSH_AUTH_SOCK") else ""
    for path in files:
        public = Path(f"{path}.pub")
        fields = public.read_text(errors="replace").split() if os.access(public, os.R_OK) else []
        if "incorrect passphrase" in _output_of("ssh-keygen", "-y", "-P", "", "-f", str(path)):
            return None if len(fields) > 1 and fields[1] in agent_keys else path
    return None


def _output_of(*argv: str) -> str:
    """Run an OpenSSH program and return its output; empty if it cannot be started or takes too long."""
    try:
        done = subprocess.run(
            argv, env=ssh_environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")
