"""Makes the TLS certificates for one transfer: an authority of its own and one for each host; nothing is kept.

Their dates are wide, since hosts' clocks may be wrong: security rests on forgetting the authority's key at once.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from clusterddp.remote.shared.wire.transfer_frames import Identity

if TYPE_CHECKING:
    from collections.abc import Iterable

_VALID_FROM, _VALID_UNTIL = (dt.datetime(year, 1, 1, tzinfo=dt.timezone.utc) for year in (2000, 2100))


class Authority:
    """A certificate authority for one transfer."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clusterddp transfer")])
        usage = {"key_cert_sign": True, "crl_sign": False, "digital_signature": False}
        self._certificate = self._sign(self._name, self._key.public_key(), _usage(usage), ca=True)

    def identity(self, name: str) -> Identity:
        """Make a key and a certificate for the host of this name in the transfer."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = {"key_cert_sign": False, "crl_sign": False, "digital_signature": True}
        extensions = [x509.SubjectAlternativeName([x509.DNSName(name)])]
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        signed = self._sign(subject, key.public_key(), _usage(usage), extensions, ca=False)
        return Identity(certificate=signed, key=secret.decode(), authority=self._certificate)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        usage: x509.KeyUsage,
        extensions: Iterable[x509.ExtensionType] = (),
        *,
        ca: bool,
    ) -> str:
        """Return a certificate for this key as PEM, signed by the authority; ``ca``: of the authority itself."""
        issuer = self._key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_VALID_FROM)
            .not_valid_after(_VALID_UNTIL)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _usage(values: dict[str, bool]) -> x509.KeyUsage:
    """The key usage extension with these values, and every other use forbidden."""
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(**values, **dict.fromkeys((*others, "encipher_only", "decipher_only"), False))
