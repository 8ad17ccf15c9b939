"""Keys read from files, in OpenSSH's and the older formats."""

from __future__ import annotations

import base64
import contextlib
import io
from typing import TYPE_CHECKING

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as formats
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

if TYPE_CHECKING:
    from pathlib import Path


class UnreadableKeyError(Exception):
    """A key file contains no private key that can be read here."""


def read(path: Path, passphrase: str = "") -> paramiko.PKey | None:
    """The key in a file; None if it needs another passphrase. ``UnreadableKeyError`` if it contains no private key."""
    try:
        if passphrase:
            return _decrypt(path.read_bytes(), passphrase.encode())
        return paramiko.PKey.from_path(path)
    except UnsupportedAlgorithm as error:
        raise UnreadableKeyError(f"is encrypted in a way that cannot be read here ({error})") from error
    except (TypeError, paramiko.PasswordRequiredException):
        return None
    except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
        raise UnreadableKeyError("holds no private key we can read") from error


def public_blob(path: Path) -> bytes:
    """Return the public key stored beside a private key, or in the file itself; or ``b""``."""
    for file in (path.with_name(f"{path.name}.pub"), path):
        with contextlib.suppress(OSError, ValueError, IndexError):  # needed only to find the same key in the agent
            text = file.read_text()
            return _public_part(text) if "BEGIN OPENSSH" in text else base64.b64decode(text.split()[1])
    return b""


def _public_part(text: str) -> bytes:
    """Return the public key in an OpenSSH private key, where it needs no passphrase; raises ValueError."""
    magic, found, rest = base64.b64decode(text.split("-----")[2]).partition(b"openssh-key-v1\0")
    if magic or not found:
        raise ValueError("another format")
    fields = paramiko.Message(rest)
    for _ in ("cipher", "key derivation", "its options"):
        fields.get_binary()
    fields.get_int()  # how many keys: one
    return fields.get_binary()


def _decrypt(data: bytes, passphrase: bytes) -> paramiko.PKey | None:
    """The key in a file's data, in either format; None if the passphrase is wrong."""
    load = formats.load_ssh_private_key if b"BEGIN OPENSSH" in data else formats.load_pem_private_key
    try:
        key = load(data, passphrase)
    except ValueError:
        return None
    kinds: dict[type, type[paramiko.PKey]] = {
        rsa.RSAPrivateKey: paramiko.RSAKey,
        ec.EllipticCurvePrivateKey: paramiko.ECDSAKey,
        ed25519.Ed25519PrivateKey: paramiko.Ed25519Key,
    }
    for kind, key_class in kinds.items():
        if isinstance(key, kind):
            plain = key.private_bytes(formats.Encoding.PEM, formats.PrivateFormat.OpenSSH, formats.NoEncryption())
            return key_class.from_private_key(io.StringIO(plain.decode()))
    raise ValueError("another kind of key")
