"""The text of a new key; `samovar.transports.keys` says what it holds."""

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

# ASN.1's "no well-defined end" (RFC 5280).
_FIRST_MOMENT, _LAST_MOMENT = datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)


def new_key() -> bytes:
    """PEM: a private key, and a certificate of it that it signs itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return secret + _certificate(private).public_bytes(serialization.Encoding.PEM)


def _certificate(private: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "samovar")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(private.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_FIRST_MOMENT)
    builder = builder.not_valid_after(_LAST_MOMENT).add_extension(x509.BasicConstraints(True, None), critical=True)
    return builder.sign(private, hashes.SHA256())
