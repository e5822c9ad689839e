"""Certificates and keys of a federation, made in Flower's environment, which has `cryptography`.

python certificates.py authority FOLDER                     ca.crt and ca.key
python certificates.py server FOLDER HOST...                server.pem and server.key
python certificates.py node FILE                            FILE and FILE.pub
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 825  # of validity, the most that some systems accept


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read; one that is there stays."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def private_bytes(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    """Return a private key as the content of a file."""
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    content: bytes = key.private_bytes(pem, form, plain)
    return content


def builder(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    """Return the beginning of a certificate."""
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    return (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=DAYS))
    )


def named(text: str) -> x509.Name:
    """Return the name of a certificate."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def authority(folder: Path) -> None:
    """Write the authority of a federation."""
    key, name = ec.generate_private_key(ec.SECP384R1()), "undrift federation"
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        builder(name, named(name), key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "ca.key", private_bytes(key, serialization.PrivateFormat.PKCS8))
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def server(folder: Path, hosts: list[str]) -> None:
    """Write the certificate of the centre for these hosts and the loopback."""
    issuer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    root = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    assert isinstance(issuer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    names = [alternative(host) for host in dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts])]
    certificate = (
        builder(hosts[0] if hosts else "localhost", root.subject, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
        )
        .sign(issuer, hashes.SHA384())
    )
    write_private(folder / "server.key", private_bytes(key, serialization.PrivateFormat.PKCS8))
    (folder / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def alternative(host: str) -> x509.GeneralName:
    """Return a host's name or address as certificates have it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def node(path: Path) -> None:
    """Write the key pair of a site."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(path, private_bytes(key, serialization.PrivateFormat.OpenSSH))
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    path.with_name(f"{path.name}.pub").write_bytes(key.public_key().public_bytes(*openssh) + b"\n")


def main() -> None:
    """Make what the arguments name."""
    what, place, *rest = sys.argv[1:]
    if what == "authority":
        authority(Path(place))
    elif what == "server":
        server(Path(place), rest)
    else:
        node(Path(place))


if __name__ == "__main__":
    main()
