"""The user's ssh configuration, as the ``ssh`` program itself reports it for a host (``ssh -G``)."""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import re
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.hosts.ssh.known_hosts import matches_pattern
from clusterddp.inventory.ssh_arguments import escape_tokens, only_ssh_expands
from clusterddp.inventory.ssh_config import SSH_CONFIG_LINE
from clusterddp.project.user_folders import user_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterddp.inventory.ssh_arguments import SshArgs

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
_CHECK_TIMEOUT = 5.0  # seconds for a ControlMaster to say that it lives
_INCLUDE_DEPTH = 16  # ssh's own limit
_EXEC = re.compile(r"(?:^|[\s!\"])exec(?:$|[\s=\"])", re.IGNORECASE)  # among the criteria of a Match
# Keywords that change neither how a host is reached nor how it is trusted.
_IRRELEVANT_KEYWORDS = {
    "host", "match", "include", "sendenv", "hashknownhosts", "gssapiauthentication", "gssapidelegatecredentials",
    "forwardx11", "forwardx11trusted", "visualhostkey", "loglevel", "serveraliveinterval", "serveralivecountmax",
    "tcpkeepalive",
}  # fmt: skip
_NEED_OPENSSH = {
    "certificatefile": "CertificateFile",
    "pkcs11provider": "PKCS11Provider",
    "knownhostscommand": "KnownHostsCommand",
    "revokedhostkeys": "RevokedHostKeys",
    "bindaddress": "BindAddress",
    "bindinterface": "BindInterface",
}
# `ssh -G` always prints these, so they are compared with its output without any configuration file.
_ALGORITHMS = {
    "kexalgorithms": "KexAlgorithms",
    "hostkeyalgorithms": "HostKeyAlgorithms",
    "ciphers": "Ciphers",
    "macs": "MACs",
    "casignaturealgorithms": "CASignatureAlgorithms",
    "pubkeyacceptedalgorithms": "PubkeyAcceptedAlgorithms",
    "requiredrsasize": "RequiredRSASize",
}

Settings = dict[str, tuple[str, ...]]


def user_home() -> Path:
    """The home whose ``.ssh`` counts: ``$HOME``."""
    return Path("~").expanduser()


def config_options(config_file: str) -> list[str]:
    """Arguments that name ``ssh`` its configuration: the user's ``-F``, or ``""``.

    Without one it reads ``$HOME/.ssh`` even if ``$HOME`` is not the account's own home: ssh ignores ``$HOME``, but both
    transports must read the same files.
    """
    if config_file:
        return ["-F", config_file]
    if str(user_home()) == _account_home():
        return []
    config = user_home() / ".ssh" / "config"
    files = [path for path in (config, SYSTEM_CONFIG) if os.access(path, os.R_OK)]
    return ["-F", str(files[0]) if files else "none"]


def ssh_environment() -> dict[str, str]:
    """The environment of an ``ssh`` child.

    Without locale: Debian's ssh sends it to the host, where nothing of ours may arrive unasked, and we parse its
    messages. With a plain shell: ssh runs ProxyCommand by ``$SHELL``, whose quoting we could not know.
    """
    ours = {name: value for name, value in os.environ.items() if name != "LANG" and not name.startswith("LC_")}
    return {**ours, "SHELL": "/bin/sh"}


def _account_home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a uid without an account, as in containers
        return str(user_home())


class SshConfig:
    """The ssh configuration of this process's user; ``ssh -G`` is run once for all hosts that are alike."""

    def __init__(self) -> None:
        self.program = shutil.which("ssh")
        self._lock = threading.Lock()
        self._scanned: tuple[bool, bool] | None = None
        self._patterns: dict[str, tuple[str, ...] | None] = {}
        self._answers: dict[tuple[object, ...], _Answer] = {}

    @property
    def match_exec(self) -> bool:
        """Whether a file contains ``Match exec``, which runs a program."""
        return self._scan()[1]

    def settings(self, address: str, args: SshArgs, options: Sequence[str]) -> Settings:
        """The settings of ``address`` by keyword; empty where neither a file nor an argument makes it worth asking.

        ``options`` are further arguments for ssh (port and user of the inventory). Raises ``UsageError`` if a
        configuration file is wrong.
        """
        unclear = any(map(only_ssh_expands, args.options.get("userknownhostsfile", ())))
        if not (self._scan()[0] or args.config_file or unclear):
            return {}
        if self.program is None:
            return _settings_by_paramiko(address)
        argv = (self.program, *config_options(args.config_file), "-T", *options, *args.passed, "-G", "--", address)
        return self._answer((*argv[:-1], self._alike(address, args)), argv, address)

    def _answer(self, key: tuple[object, ...], argv: Sequence[str], address: str) -> Settings:
        """What ssh prints, asked once for a key."""
        with self._lock:
            answer = self._answers.setdefault(key, _Answer())
        return answer.about(address, argv)

    def _alike(self, address: str, args: SshArgs) -> object:
        """A value that two addresses have in common only if ssh's settings for them differ in the address alone."""
        with self._lock:
            if args.config_file not in self._patterns:
                self._patterns[args.config_file] = _host_patterns(_files(args.config_file))
            patterns = self._patterns[args.config_file]
        if patterns is None or address != address.lower() or any("%" in word for word in (address, *args.passed)):
            return address
        return tuple(matches_pattern(address, pattern) for pattern in patterns)

    def openssh_reason(self, found: Settings) -> str:
        """The setting for which a host needs the ``ssh`` program, or ``""``."""
        if self.match_exec:
            return "Match exec in ssh_config"
        for keyword, spelled in _NEED_OPENSSH.items():
            if found.get(keyword, ("none",))[0] not in ("none", ""):
                return f"{spelled} in ssh_config"
        if found.get("proxyusefdpass", ("no",))[0].lower() in ("yes", "true"):
            return "ProxyUseFdpass in ssh_config"
        # Other first methods ask the user, which the program cannot do here.
        if found.get("preferredauthentications", ("",))[0].startswith(("hostbased", "gssapi-")):
            return "PreferredAuthentications in ssh_config"
        agent = found.get("identityagent", ("none",))[0]
        if agent not in ("none", "SSH_AUTH_SOCK", "$SSH_AUTH_SOCK", os.environ.get("SSH_AUTH_SOCK")):
            return "IdentityAgent in ssh_config"
        if found.get("addressfamily", ("any",))[0] not in ("any", ""):
            return "AddressFamily in ssh_config"
        default = self._defaults() if found.keys() & _ALGORITHMS.keys() else {}
        changed = (spelled for keyword, spelled in _ALGORITHMS.items() if found.get(keyword) != default.get(keyword))
        return next((f"{spelled} in ssh_config" for spelled in changed), "")

    def _defaults(self) -> Settings:
        """The settings of ssh without any configuration file."""
        if self.program is None:
            return {}
        argv = (self.program, "-F", "none", "-G", "--", "nobody")
        return self._answer(argv, argv, "nobody")

    def master_is_live(self, found: Settings, config_file: str, argv_of_host: Sequence[str]) -> bool:
        """Whether the user has a live ControlMaster that would carry a session to the host.

        One that hangs (stopped by ``~^Z``) is none.
        """
        if self.program is None or found.get("controlpath", ("none",))[0] == "none":
            return False
        argv = [self.program, *config_options(config_file), "-O", "check", *argv_of_host]
        try:
            return _run_ssh(argv, _CHECK_TIMEOUT).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _scan(self) -> tuple[bool, bool]:
        """Whether any setting here matters, and whether there is a ``Match exec``; read once."""
        with self._lock:
            if self._scanned is None:
                lines = [line for path, folder in _files("") for line in _lines(path, folder)]
                relevant = any(
                    keyword not in _IRRELEVANT_KEYWORDS or (keyword == "include" and "%" in rest)  # a file unknown here
                    for keyword, rest in lines
                )
                exec_ = any(keyword == "match" and _EXEC.search(rest) for keyword, rest in lines)
                self._scanned = (relevant or exec_, exec_)
            return self._scanned


class _Answer:
    """What ``ssh -G`` prints for addresses that are alike; asked for the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settings: Settings | None = None
        self._address = ""

    def about(self, address: str, argv: Sequence[str]) -> Settings:
        """The settings of one of the addresses; raises UsageError."""
        with self._lock:
            if self._settings is None:
                self._settings, self._address = _query_ssh(argv, address), address
            if address == self._address:
                return self._settings
            own = {word: (address,) for word in ("hostname", "host") if self._settings.get(word) == (self._address,)}
            return {**self._settings, **own}


def _files(config_file: str) -> list[tuple[Path, Path]]:
    """The configuration files, each with the folder that its includes are relative to; ``config_file``: of ``-F``."""
    folder = user_home() / ".ssh"
    if config_file:
        return [(user_path(config_file), folder)]
    return [(folder / "config", folder), (SYSTEM_CONFIG, SYSTEM_CONFIG.parent)]


def _host_patterns(files: Sequence[tuple[Path, Path]]) -> tuple[str, ...] | None:
    """The patterns of Host and names of HostName lines; None if settings may depend on a host's name in other ways."""
    patterns: list[str] = []
    for keyword, rest in [line for path, folder in files for line in _lines(path, folder)]:
        other_match = keyword == "match" and rest.lower() != "all"
        token = "%" in rest and keyword != "proxycommand"  # which ssh -G does not replace
        unread = not rest or (keyword == "host" and re.search(r"[\"'\\]", rest))
        if other_match or token or unread or keyword == "canonicalizehostname":
            return None
        if keyword == "host":
            patterns += [pattern.removeprefix("!") for pattern in rest.split()]
        elif keyword == "hostname":  # for the host of that name itself, ssh's answer looks as without this line
            patterns += [name.strip('"').lower() for name in rest.split()[:1]]
    return tuple(patterns)


def _lines(path: Path, folder: Path, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield keyword and rest of every line of a configuration file and of those it includes."""
    try:
        text = path.read_text(errors="replace")
    except (OSError, ValueError):  # ValueError: the name contains a zero byte
        return
    for line in text.split("\n"):
        match = SSH_CONFIG_LINE.fullmatch(line)
        if match is None:
            if line.strip() and not line.lstrip().startswith("#"):
                yield line, ""  # a line that only ssh understands
            continue
        keyword, rest = match[1].lower(), match[2]
        yield keyword, rest
        if keyword == "include" and depth < _INCLUDE_DEPTH:
            for pattern in _words(os.path.expandvars(rest.replace("\0", ""))):
                included = folder / os.path.expanduser(pattern)  # noqa: PTH111 - Path's raises for an unknown user
                for name in glob.glob(str(included)):  # noqa: PTH207 - may be absolute
                    yield from _lines(Path(name), folder, depth + 1)


def _words(text: str) -> Iterator[str]:
    """Yield the words of a line's rest, which may be quoted."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    with contextlib.suppress(ValueError):  # an apostrophe in a comment behind them
        yield from lexer


def _run_ssh(argv: Sequence[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        start_new_session=True,
        env=ssh_environment(),
        timeout=timeout,
    )


def _query_ssh(argv: Sequence[str], address: str) -> Settings:
    """The settings that ``ssh -G`` prints; raises UsageError."""
    answer = _run_ssh(argv)
    if answer.returncode:
        errors = answer.stderr.strip().splitlines() or ["ssh -G failed"]
        raise UsageError(f"{address}: ssh cannot use its configuration: {errors[0]}", remedy=f"see: ssh -G {address}")
    found: Settings = {}
    for line in answer.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        found[keyword.lower()] = (*found.get(keyword.lower(), ()), _in_user_home(value))
    known_hosts = found.get("userknownhostsfile", ())  # as other settings here, with tokens: ssh has replaced them
    return {**found, "userknownhostsfile": tuple(map(escape_tokens, known_hosts))}


def _in_user_home(value: str) -> str:
    """Replace the account's home, which ssh names, by ``$HOME``; see ``config_options``."""
    if str(user_home()) == _account_home():
        return value
    return value.replace(f"{_account_home()}/.ssh/", f"{user_home()}/.ssh/")


def _settings_by_paramiko(address: str) -> Settings:
    """The settings as paramiko reads them, where there is no ``ssh`` program."""
    import paramiko  # noqa: PLC0415 - takes a tenth of a second

    config = paramiko.SSHConfig()
    for path in (user_home() / ".ssh" / "config", SYSTEM_CONFIG):
        if os.access(path, os.R_OK):
            with path.open() as file:
                config.parse(file)
    found: Mapping[str, str | list[str] | None] = config.lookup(address)
    return {
        keyword: tuple(value) if isinstance(value, list) else (value or "none",) for keyword, value in found.items()
    }
