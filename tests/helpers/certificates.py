"""A certificate for 127.0.0.1, and of the authority that signed it, made anew for each test."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def write_certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Writes the authority's certificate, the server's and its key; returns their paths."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _builder("authority of this test", "authority of this test", authority_key)
    authority = authority.add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    authority = authority.add_extension(_usage(signs=True), critical=True)
    server = _builder("server", "authority of this test", key)
    own_address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    server = server.add_extension(own_address, critical=False)
    files = {
        "authority.pem": _pem(authority.sign(authority_key, hashes.SHA256())),
        "server.pem": _pem(server.sign(authority_key, hashes.SHA256())),
        "server.key": key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    authority_path, server_path, key_path = (folder / name for name in files)
    return authority_path, server_path, key_path


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    unused = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment")
    unused += ("key_agreement", "encipher_only", "decipher_only")
    return x509.KeyUsage(**dict.fromkeys(unused, False), key_cert_sign=signs, crl_sign=signs)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
