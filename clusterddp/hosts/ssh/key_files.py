"""Private keys read from files, in OpenSSH's and the older formats."""

from __future__ import annotations

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
