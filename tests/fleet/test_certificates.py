"""Certificates: private keys stay private, and a certificate that is not the agent's own is refused by name."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fleet_cases import tiny

from peermask.errors import NodeError
from peermask.fleet.authority import make_authority, open_authority, verifier
from peermask.fleet.certificates import make_certificates, sign_agent
from peermask.fleet.credentials import check_credentials
from peermask.fleet.fleet import new_fleet

FLEET = new_fleet(tiny(), ["127.0.0.1", "127.0.0.2", "pi.local", "10.0.0.9"])


def replaced(certs, agent, authority=None, host="127.0.0.1", valid=timedelta(days=1)):
    """Another certificate and key in an agent's place."""
    own = ec.generate_private_key(ec.SECP256R1())
    signed = sign_agent(f"agent-{agent}", host, own.public_key(), authority or make_authority(), valid)
    (certs / "agent-0.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def fill(path):
    """Put a folder in place of a file."""
    path.unlink()
    path.mkdir(0o700)


def test_one_certificate_per_agent_and_keys_for_the_owner_alone(certs):
    assert sorted(path.name for path in certs.iterdir()) == sorted(
        ["ca.pem", "ca.key", *(f"agent-{i}.{end}" for i in range(4) for end in ("pem", "key"))]
    )
    for path in certs.glob("*.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert certs.stat().st_mode & 0o077 == 0
    for agent in range(4):
        check_credentials(FLEET, certs, agent)


def test_what_exists_stays_and_renewing_replaces_one(certs):
    before = {path.name: path.read_bytes() for path in certs.iterdir()}
    assert make_certificates(FLEET, certs) == []
    assert make_certificates(FLEET, certs, renew=(2,)) == [certs / "agent-2.pem"]
    changed = {path.name for path in certs.iterdir() if path.read_bytes() != before[path.name]}
    assert changed == {"agent-2.pem", "agent-2.key"}
    check_credentials(FLEET, certs, 2)
    with pytest.raises(NodeError, match=r"agent 9 does not exist"):
        make_certificates(FLEET, certs, renew=(9,))


def test_a_lost_authority_key_is_said(certs):
    (certs / "ca.key").unlink()
    with pytest.raises(NodeError, match=r"exists without .*ca.key"):
        make_certificates(FLEET, certs)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda certs: (certs / "agent-0.pem").unlink(), "agent 0 has no certificate: .* or run with --insecure"),
        (lambda certs: shutil.copy(certs / "agent-1.pem", certs / "agent-0.pem"), "is of agent-1, not of agent 0"),
        (lambda certs: replaced(certs, 0), "was not issued by"),
        (lambda certs: replaced(certs, 0, open_authority(certs), host="10.0.0.1"), "is not for 127.0.0.1"),
        (
            lambda certs: replaced(certs, 0, open_authority(certs), valid=-timedelta(days=2)),
            "expired .* UTC, and this device's clock says .*; set the clock if it is ahead, .*fleet renew FLEET 0",
        ),
        (lambda certs: shutil.copy(certs / "agent-1.key", certs / "agent-0.key"), "does not belong to"),
        (lambda certs: (certs / "agent-0.key").chmod(0o640), "can be read by others; run `chmod 600"),
        (lambda certs: (certs / "agent-0.key").unlink(), "agent-0.key cannot be read: No such file"),
        (lambda certs: fill(certs / "agent-0.key"), "agent-0.key cannot be read: Is a directory"),
        *(
            (lambda certs, name=name: (certs / name).write_bytes(b"\x00\xffrubbish"), rf"{name} is not")
            for name in ("agent-0.pem", "agent-0.key", "ca.pem")
        ),
    ],
)
def test_what_is_wrong_with_an_agents_files_is_one_line(certs, change, line):
    change(certs)
    with pytest.raises(NodeError, match=line) as refused:
        check_credentials(FLEET, certs, 0)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("behind", [timedelta(minutes=90), timedelta(days=3 * 365)])
def test_a_clock_that_is_behind_is_no_reason_to_make_certificates_again(certs, behind):
    with pytest.raises(NodeError, match=r"the clock is behind; set it, or wait") as refused:
        check_credentials(FLEET, certs, 0, datetime.now(UTC) - behind)
    assert "fleet renew" not in str(refused.value)
    assert refused.value.exit_code == 75


def test_a_clock_that_is_years_ahead_is_named_beside_the_end(certs):
    with pytest.raises(NodeError, match=r"expired .*clock says .* set the clock if it is ahead, otherwise"):
        check_credentials(FLEET, certs, 0, datetime.now(UTC) + timedelta(days=3 * 365))


@pytest.mark.parametrize("name", ["agent-0.pem", "agent-0.key", "ca.pem"])
def test_a_flipped_bit_is_one_line_that_no_unit_restarts_for(certs, name):
    whole = (certs / name).read_bytes()
    refused = []
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 7  # of the text, so that it stays text
        (certs / name).write_bytes(damaged)
        try:
            check_credentials(FLEET, certs, 0)
            verifier(certs / "ca.pem")
        except NodeError as error:
            refused.append(error)
    assert len(refused) > 0.95 * len(whole) / 3  # some bits are nowhere: ends of lines, the last character
    assert not [error for error in refused if "\n" in str(error)]
    assert {error.exit_code for error in refused if "the clock is behind" not in str(error)} == {2}
