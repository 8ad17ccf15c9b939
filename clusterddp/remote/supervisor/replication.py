"""Replication for ``clusterddp_carry``: nodes new to an attempt first get these paths from the other nodes.

Nodes that stay listen on a port of the run's range for as long as the attempt lasts, and publish it with their status
(control/messages.py). A new node asks each what it has, compares, and fetches from the lowest member; if copies differ
it fetches none. Both sides prove the run's key for each request; the key also authenticates the answer's first line,
and digests what follows. Nothing is encrypted, as in all of run control. All of it runs in separate threads.

    who listens   {nonce}
    who asks      {member, nonce, path, get, proof}
    who listens   {manifest, chunk_lists, digest, proof} and so many bytes; with ``get`` the contents, as bundles
"""

import contextlib
import hashlib
import hmac
import json
import os
import socket
import threading
import time
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..control.connection import Address, Secret
from ..shared.schema.fields import Fields
from ..shared.wire.chunk_stream import Incoming
from ..shared.wire.frames import parse_json
from ..system.bootstrap import Refused
from ..system.unproven_connections import UnprovenConnections, end_connection
from ..transfer.replicated_paths import PathContent, bundles, decode_content, encode_content, read_content, receive_path

READ_TIMEOUT = 30.0  # seconds for the other side's next bytes
HASH_TIMEOUT = 600.0  # seconds for the other side to read and hash its files
PROOF_TIMEOUT = 10.0  # seconds from the start of a connection to its request
MAX_PARALLEL = 4  # requests answered at once
MAX_UNPROVEN = 64  # connections that have not proved the key yet; the oldest is closed
_MAX_LINE = 4096  # bytes of a request, and of an answer's first line
_MAX_MANIFEST = 256 << 20  # bytes of a manifest
_BLOCK = 1 << 18  # bytes read at once


class ReplicaSource(NamedTuple):
    """A node that may have the paths."""

    member: int
    host: str
    address: Address


class _StoppedError(Exception):
    """The replication is no longer wanted."""


def _proof(secret: Secret, *values: object) -> str:
    text = json.dumps(["clusterddp carry 2", secret.run, *values])
    return hmac.new(secret.key, text.encode(), hashlib.sha256).hexdigest()


def _check_proof(sent: str, proof: str) -> None:
    """Raise ValueError unless the other side has sent this proof."""
    if not hmac.compare_digest(proof.encode(), sent.encode(errors="replace")):  # what it sends may be no ASCII
        raise ValueError("it does not know the run's key")


class ReplicaServer:
    """Serves paths to the new nodes, from threads, until it is closed; only ``paths`` may be requested."""

    def __init__(self, secret: Secret, listener: socket.socket, workdir: str, paths: Sequence[str]) -> None:
        self.port = int(listener.getsockname()[1])
        self._secret, self._listener, self._workdir, self._paths = secret, listener, workdir, paths
        self._carried: Dict[str, Optional[PathContent]] = {}
        self._read_lock = threading.Lock()
        self._unproven = UnprovenConnections(MAX_UNPROVEN)
        self._at_once = threading.Semaphore(MAX_PARALLEL)
        self._closed = False
        threading.Thread(target=self._accept, name="carry", daemon=True).start()

    def close(self) -> None:
        """Accept no more requests."""
        self._closed = True
        end_connection(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()[0]
            except OSError:  # the caller has left, no descriptor is free, or we are closed
                time.sleep(0.01)
                continue
            self._unproven.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="carry to one", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                try:
                    asked, values = self._read_request(connection)
                finally:
                    self._unproven.discard(connection)
                connection.settimeout(READ_TIMEOUT)
                with self._at_once:
                    self._answer(connection, asked, values)
        except (OSError, ValueError):  # not authenticated, or disconnected; the other side sees the incomplete answer
            pass

    def _read_request(self, connection: socket.socket) -> Tuple[Fields, Tuple[object, ...]]:
        """The request of a node that proves the run's key, and the values that bind an answer to it; raises OSError."""
        ours = os.urandom(16).hex()
        connection.settimeout(PROOF_TIMEOUT)
        connection.sendall(json.dumps({"nonce": ours}).encode() + b"\n")
        until = time.monotonic() + PROOF_TIMEOUT
        asked = Fields(parse_json(Incoming(lambda: _read_until(connection, until)).line(_MAX_LINE)))
        member, theirs, path, get = asked.number("member"), asked.text("nonce"), asked.text("path"), asked.flag("get")
        values = (ours, theirs, member, self._secret.member, path, get)
        _check_proof(asked.text("proof"), _proof(self._secret, "asks", *values))
        return asked, values

    def _answer(self, connection: socket.socket, asked: Fields, values: Tuple[object, ...]) -> None:
        """Send a path's manifest and, with ``get``, its contents; ``values`` bind the proof to the request."""
        path = asked.text("path")
        carried = self._read_path(path) if path in self._paths else None
        entries, chunk_lists = encode_content(carried)
        body = entries + chunk_lists
        head = {"manifest": len(entries), "chunk_lists": len(chunk_lists), "digest": hashlib.sha256(body).hexdigest()}
        proof = _proof(self._secret, "tells", *values, *head.values())
        connection.sendall(json.dumps(dict(head, proof=proof)).encode() + b"\n" + body)
        for piece in bundles(self._workdir, path, carried) if carried and asked.flag("get") else ():
            connection.sendall(piece)

    def _read_path(self, path: str) -> Optional[PathContent]:
        """The files at a path, read once an attempt, so that all nodes get the same."""
        with self._read_lock:
            if path not in self._carried:
                self._carried[path] = read_content(self._workdir, path)
            return self._carried[path]


class ReplicaFetcher:
    """Fetches paths to this node, in a thread.

    ``sources`` are sorted by member index. ``stopped`` tells whether the paths are no longer wanted, and ``tell`` takes
    a line for the user on each path; the thread calls both. ``umask`` is the user's.
    """

    def __init__(
        self,
        secret: Secret,
        workdir: str,
        paths: Sequence[str],
        sources: Sequence[ReplicaSource],
        stopped: Callable[[], bool],
        tell: Callable[[str], None],
        umask: int = 0o022,
    ) -> None:
        self._secret, self._workdir, self._sources, self._umask = secret, workdir, sources, umask
        self._stopped, self._tell = stopped, tell
        self._thread = threading.Thread(target=self._run, args=(paths,), name="carry here", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether all is done."""
        return not self._thread.is_alive()

    def _run(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._tell("%s: %s" % (path, self._take(path)))
            except _StoppedError:
                return
            except Exception as error:  # noqa: BLE001 - the attempt goes on without it, and says why
                why = getattr(error, "message", None) or getattr(error, "strerror", None) or repr(error)
                self._tell("%s: could not be carried here: %s" % (path, why))

    def _take(self, path: str) -> str:
        """Fetch a path from the lowest member that has it; return what was done, for the user."""
        found: List[Tuple[ReplicaSource, PathContent]] = []
        silent: List[str] = []
        for source in self._sources:
            try:
                with self._request(source, path, get=False) as (carried, _):
                    pass
            except (OSError, ValueError, Refused):
                silent.append(source.host)
                continue
            found += [(source, carried)] if carried else []
        note = "; %s cannot be asked" % ", ".join(silent) if silent else ""
        if not found:
            return "no host of the run has it" + note
        if len({carried.digest for _, carried in found}) > 1:
            return "copies differ on %s: none is taken%s" % (", ".join(source.host for source, _ in found), note)
        source, carried = found[0]
        ours = read_content(self._workdir, path)
        if ours and ours.digest == carried.digest:
            return "is here already" + note
        with self._request(source, path, get=True) as (announced, incoming):
            if announced is None or announced.digest != carried.digest:
                raise Refused("it changed on %s" % source.host)
            receive_path(self._workdir, path, carried, incoming, self._raise_if_stopped, self._umask)
        return "from %s (%.1f MB)%s" % (source.host, carried.size / 1e6, note)

    def _raise_if_stopped(self) -> None:
        if self._stopped():
            raise _StoppedError

    @contextlib.contextmanager
    def _request(
        self, source: ReplicaSource, path: str, *, get: bool
    ) -> Iterator[Tuple[Optional[PathContent], Incoming]]:
        """What a node has at a path, and its contents as they arrive; raises OSError or ValueError."""
        self._raise_if_stopped()
        with socket.create_connection(source.address, READ_TIMEOUT) as connection:
            yield self._exchange(connection, source, path, get=get)

    def _exchange(
        self, connection: socket.socket, source: ReplicaSource, path: str, *, get: bool
    ) -> Tuple[Optional[PathContent], Incoming]:
        """Prove the key, send the request, check the answer's proof and decode its manifest."""
        connection.settimeout(HASH_TIMEOUT)
        incoming = Incoming(lambda: connection.recv(_BLOCK))
        ours, theirs = os.urandom(16).hex(), Fields(parse_json(incoming.line(_MAX_LINE))).text("nonce")
        values = (theirs, ours, self._secret.member, source.member, path, get)
        asked = {"member": self._secret.member, "nonce": ours, "path": path, "get": get}
        connection.sendall(json.dumps(dict(asked, proof=_proof(self._secret, "asks", *values))).encode() + b"\n")
        answer = Fields(parse_json(incoming.line(_MAX_LINE)))
        size, chunk_lists = answer.number("manifest", _MAX_MANIFEST), answer.number("chunk_lists", _MAX_MANIFEST)
        digest = answer.text("digest")
        _check_proof(answer.text("proof"), _proof(self._secret, "tells", *values, size, chunk_lists, digest))
        connection.settimeout(READ_TIMEOUT)
        body = incoming.take(size + chunk_lists)
        if hashlib.sha256(body).hexdigest() != digest:
            raise ValueError("what was sent came damaged")
        return decode_content(path, body[:size], body[size:]), incoming


def _read_until(connection: socket.socket, until: float) -> bytes:
    """The next bytes; with some always there, a short timeout alone would never end."""
    left = until - time.monotonic()
    if left <= 0:
        raise socket.timeout("too slow")
    connection.settimeout(left)
    return connection.recv(_BLOCK)
