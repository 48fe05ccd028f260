"""The certificates on a device: which files they are, and whether they are the right ones, valid and private.

ca.pem        the authority's certificate; every device has it. Of two authorities while one replaces the other
agent-3.pem   agent 3's certificate
agent-3.key   its key; on that device only
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from peermask.errors import NodeError, NotYetError
from peermask.fleet.authority import issuer_of, load_authorities
from peermask.fleet.fleet import OPERATOR_NAME, Fleet
from peermask.fleet.pem import load_certificate, load_key

try:
    from cryptography import x509
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error

OPERATOR_PROTOCOL = "peermask-operator/1"  # ALPN
OPERATOR = re.compile(f"operator-{OPERATOR_NAME.pattern}")  # the name in an operator's certificate
MINUTES = "%Y-%m-%d %H:%M UTC"


def name_in(subject: x509.Name) -> str:
    """The common name of a certificate or a request."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else "nobody"


def common_name(agent: int) -> str:
    return f"agent-{agent}"


@dataclass(frozen=True)
class Credentials:
    """The three files an agent needs."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path, agent: int) -> Credentials:
        name = common_name(agent)
        return cls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")


def operator_files(folder: Path, name: str) -> Credentials:
    return Credentials(folder / "ca.pem", folder / f"operator-{name}.pem", folder / f"operator-{name}.key")


def relay_files(folder: Path) -> Credentials:
    return Credentials(folder / "ca.pem", folder / "relay.pem", folder / "relay.key")


def check_credentials(fleet: Fleet, folder: Path, agent: int, now: datetime | None = None) -> Credentials:
    """The files of an agent, checked: its own, intact, in date and private. Otherwise one line with what to do."""
    files = Credentials.of(folder, agent)
    authorities = load_authorities(files.ca, agent)
    certificate = load_certificate(files.certificate, agent)
    name = name_in(certificate.subject)
    again = f"make it again with `peermask fleet renew FLEET {agent}`"
    if name != fleet.member(agent).name:
        if name.startswith(f"{common_name(agent)}-") or name == common_name(agent):
            raise NodeError(
                f"certificate {files.certificate} was revoked, or this fleet file is older than it ({name}, not "
                f"{fleet.member(agent).name}); copy both again"
            )
        raise NodeError(f"certificate {files.certificate} is of {name}, not of agent {agent}; copy the right one")
    issuer = issuer_of(certificate, authorities)
    if issuer is None:
        raise NodeError(f"certificate {files.certificate} was not issued by {files.ca}; {again}")
    now, start = now or datetime.now(UTC), certificate.not_valid_before_utc
    end = min(certificate.not_valid_after_utc, issuer.not_valid_after_utc)
    if now < start:
        raise NotYetError(
            f"this device's clock says {now:{MINUTES}}, before {start:{MINUTES}}, when certificate {files.certificate} "
            "begins: the clock is behind; set it, or wait until it is set"
        )
    if now > end:
        raise NodeError(
            f"certificate {files.certificate} expired {end:{MINUTES}}, and this device's clock says {now:{MINUTES}}; "
            f"set the clock if it is ahead, otherwise {again}"
        )
    if host_name(fleet.member(agent).host) not in _names_of(certificate):
        raise NodeError(f"certificate {files.certificate} is not for {fleet.member(agent).host}; {again}")
    _check_key(files, certificate, again)
    return files


def _names_of(certificate: x509.Certificate) -> Collection[x509.GeneralName]:
    try:
        return tuple(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return ()


def validity(files: Credentials) -> tuple[datetime, datetime]:
    """From when until when an agent's certificate is valid."""
    certificate = load_certificate(files.certificate)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def find_operator(folder: Path, name: str | None = None) -> Credentials:
    """The operator's files in a folder, checked: in date and of the fleet's authority. Otherwise a one-line error."""
    again = "make one with `peermask fleet operator FLEET NAME`, and copy it and ca.pem here"
    names = [path.stem.removeprefix("operator-") for path in sorted(folder.glob("operator-*.pem"))]
    if name is None and len(names) > 1:
        raise NodeError(f"{folder} holds certificates of operators {', '.join(names)}; choose one with --operator")
    if not names or (name is not None and name not in names):
        raise NodeError(f"{folder} holds no certificate of {f'operator {name}' if name else 'an operator'}; {again}")
    return _checked(operator_files(folder, name or names[0]), again)


def find_relay(folder: Path) -> Credentials:
    return _checked(relay_files(folder), "make it with `peermask fleet certs`, and copy it and ca.pem here")


def _checked(files: Credentials, again: str) -> Credentials:
    certificate = load_certificate(files.certificate)
    if issuer_of(certificate, load_authorities(files.ca)) is None:
        raise NodeError(f"{files.certificate} is of another fleet: {files.ca} did not issue it; {again}")
    if datetime.now(UTC) > certificate.not_valid_after_utc:
        raise NodeError(f"{files.certificate} expired {certificate.not_valid_after_utc:{MINUTES}}; {again}")
    _check_key(files, certificate, again)
    return files


def _check_key(files: Credentials, certificate: x509.Certificate, again: str) -> None:
    if load_key(files.key).public_key() != certificate.public_key():
        raise NodeError(f"key {files.key} does not belong to {files.certificate}; {again}")


def host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def tls_context(side: int, credentials: Credentials, protocol: str = OPERATOR_PROTOCOL) -> ssl.SSLContext:
    """Both ends must have a certificate of the fleet's authority."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(credentials.ca)
    context.load_cert_chain(credentials.certificate, credentials.key)
    context.set_alpn_protocols([protocol])
    return context


def name_of(certificate: Mapping[str, object] | None) -> str:
    """The common name, as the ssl module gives it."""
    subject = (certificate or {}).get("subject", ())
    assert isinstance(subject, tuple)
    return next((str(value) for ((key, value),) in subject if key == "commonName"), "nobody")
