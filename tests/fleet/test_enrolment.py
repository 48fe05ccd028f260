"""Enrolment by request: keys stay on devices, and a request that is not what it claims is refused in one line."""

from __future__ import annotations

import base64
import json
import re
import shutil

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from fleet_cases import PATIENT, refused, tiny, tiny_fleet, written
from fleet_process import ProcessFleet

from peermask.fleet.certificates import LARGEST_BYTES
from peermask.fleet.credentials import Credentials, check_credentials
from peermask.fleet.fleet import load_fleet


class Desk:
    """The folder with the authority, and the folder of the device of agent 3."""

    def __init__(self, call, tmp_path):
        self.call = call
        (tmp_path / "desk").mkdir()
        (tmp_path / "device").mkdir()
        self.path = written(tmp_path / "desk", tiny_fleet())
        self.certs, self.device = self.path.parent / "certs", tmp_path / "device" / "fleet.toml"
        assert call("fleet", "certs", self.path, "--requests")[0] == 0
        shutil.copy(self.path, self.device)

    def request(self, *options, agent=3):
        """The request of the device, and its fingerprint."""
        code, out, _ = self.call("fleet", "request", self.device, agent, *options)
        assert code == 0
        return self.device.parent / "certs" / f"agent-{agent}.csr", re.search(r"^fingerprint: (\w{32})$", out, re.M)[1]

    def enrol(self, request, *options, agent=3):
        return self.call("fleet", "enrol", self.path, agent, request, *options)

    def deliver(self, agent=3):
        for name in ("ca.pem", f"agent-{agent}.pem"):
            shutil.copy(self.certs / name, self.device.parent / "certs")
        return check_credentials(load_fleet(self.device), self.device.parent / "certs", agent)


@pytest.fixture
def desk(call, tmp_path):
    return Desk(call, tmp_path)


def test_a_key_is_made_on_its_device_and_only_certificates_travel(desk):
    assert sorted(path.name for path in desk.certs.iterdir()) == ["ca.key", "ca.pem"]
    request, fingerprint = desk.request()
    key = desk.device.parent / "certs" / "agent-3.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in request.read_bytes()
    assert fingerprint in refused(desk.enrol(request))  # what to compare is shown, and nothing is signed
    assert not (desk.certs / "agent-3.pem").exists()
    code, out, _ = desk.enrol(request, "--fingerprint", fingerprint.upper())
    assert (code, "agent-3.pem: copy it" in out) == (0, True)
    desk.deliver()
    assert sorted(path.name for path in desk.certs.iterdir()) == ["agent-3.pem", "ca.key", "ca.pem"]


def test_renewing_keeps_the_key_and_needs_no_more_than_a_request(desk):
    first, fingerprint = desk.request()
    desk.enrol(first, "--fingerprint", fingerprint)
    before = desk.deliver().certificate.read_bytes()
    again, same = desk.request()
    assert same == fingerprint
    assert desk.enrol(again, "--fingerprint", same, "--days", 30)[0] == 0
    assert desk.deliver().certificate.read_bytes() != before
    code, out, _ = desk.call("fleet", "renew", desk.path, 3)  # the authority knows the key
    assert (code, "without a key for agent 3, whose device has it" in out) == (0, True)
    desk.deliver()


def test_another_device_does_not_take_the_place_of_one_unnoticed(desk):
    request, fingerprint = desk.request()
    desk.enrol(request, "--fingerprint", fingerprint)
    request, other = desk.request("--new-key")
    assert other != fingerprint
    assert "has a certificate for another key" in refused(desk.enrol(request, "--fingerprint", other))
    assert desk.enrol(request, "--fingerprint", other, "--replace")[0] == 0
    desk.deliver()


def test_a_revoked_key_is_not_signed_again(desk):
    request, fingerprint = desk.request()
    desk.enrol(request, "--fingerprint", fingerprint)
    code, out, _ = desk.call("fleet", "revoke", desk.path, 3)
    assert (code, "fleet request FLEET 3 --new-key" in out) == (0, True)
    assert "the key of agent 3 was revoked" in refused(desk.call("fleet", "renew", desk.path, 3))
    assert not (desk.certs / "agent-3.key").exists()
    assert "request" in refused(desk.enrol(request, "--fingerprint", fingerprint))  # of the old name
    shutil.copy(desk.path, desk.device)
    request, fingerprint = desk.request()
    assert "this key of agent 3 was revoked" in refused(desk.enrol(request, "--fingerprint", fingerprint))
    request, fingerprint = desk.request("--new-key")
    assert desk.enrol(request, "--fingerprint", fingerprint)[0] == 0
    desk.deliver()


def test_changes_of_the_roster_make_no_keys(desk):
    assert desk.call("fleet", "link", desk.path, 1, 3)[0] == 0
    code, out, _ = desk.call("fleet", "add", desk.path, "--host", "127.0.0.1", "--request")
    assert (code, "fleet request fleet.toml 4" in out) == (0, True)
    assert sorted(path.name for path in desk.certs.iterdir()) == ["ca.key", "ca.pem"]


def test_a_request_for_another_agents_name(desk):
    request, fingerprint = desk.request(agent=2)
    said = refused(desk.enrol(request, "--fingerprint", fingerprint))
    assert "is for agent-2, not for agent-3" in said
    assert "agent 9 does not exist" in refused(desk.enrol(request, agent=9))


def test_a_request_that_was_replaced_on_its_way(desk):
    request, fingerprint = desk.request()
    request.write_bytes(made("agent-3", ec.generate_private_key(ec.SECP256R1())))
    assert "it was replaced on its way" in refused(desk.enrol(request, "--fingerprint", fingerprint))
    assert list(desk.certs.glob("agent-*")) == []


def test_a_request_signed_by_another_key(desk):
    request, fingerprint = desk.request()
    own, signature = x509.load_pem_x509_csr(request.read_bytes()), b""
    while len(signature) != len(own.signature):  # 70 to 72 bytes
        other = x509.load_pem_x509_csr(made("agent-3", ec.generate_private_key(ec.SECP256R1())))
        signature = other.signature
    data = own.public_bytes(serialization.Encoding.DER)  # it ends with the signature
    request.write_bytes(pem(data[: -len(signature)] + signature))
    said = refused(desk.enrol(request, "--fingerprint", fingerprint))
    assert "is not signed with the key in it" in said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x00rubbish", "is not a PEM request, or is damaged"),
        (b"a" * (LARGEST_BYTES + 1), f"has more than {LARGEST_BYTES} bytes"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_no_request(desk, tmp_path, content, words):
    path = tmp_path / "x.csr"
    if content is not None:
        path.write_bytes(content)
    assert words in refused(desk.enrol(path, "--fingerprint", "0" * 32))


def test_a_key_of_another_kind(desk, tmp_path):
    (tmp_path / "x.csr").write_bytes(made("agent-3", rsa.generate_private_key(65537, 2048)))
    assert "has a key that is not of P-256" in refused(desk.enrol(tmp_path / "x.csr"))


def test_every_flipped_bit_of_a_request_is_one_line_or_harmless(desk):
    request, fingerprint = desk.request()
    whole = request.read_bytes()
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 7
        request.write_bytes(damaged)
        code, _, err = desk.enrol(request, "--fingerprint", fingerprint)
        assert code == 0 or (code == 2 and err.count("\n") == 1)


def test_without_the_authoritys_key_nothing_is_signed(desk):
    request, fingerprint = desk.request()
    (desk.certs / "ca.key").unlink()
    assert "ca.key does not exist" in refused(desk.enrol(request, "--fingerprint", fingerprint))


def test_the_certificate_of_another_key_is_refused_by_the_device(desk):
    request, fingerprint = desk.request()
    desk.enrol(request, "--fingerprint", fingerprint)
    desk.request("--new-key")
    with pytest.raises(Exception, match="does not belong to"):
        desk.deliver()


def made(name, key):
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def pem(der):
    lines = base64.encodebytes(der).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{lines}-----END CERTIFICATE REQUEST-----\n".encode()


def test_agents_that_were_enrolled_by_request_run(call, tmp_path):
    held = tiny_fleet(tiny(agents=2, rounds=4, graph={"name": "path"}), **PATIENT)
    path = written(tmp_path, held)
    assert call("fleet", "certs", path, "--requests")[0] == 0
    for agent in (0, 1):
        out = call("fleet", "request", path, agent)[1]
        fingerprint = out.split()[-1]
        request = tmp_path / "certs" / f"agent-{agent}.csr"
        assert call("fleet", "enrol", path, agent, request, "--fingerprint", fingerprint)[0] == 0
    with ProcessFleet(path, held) as running:
        running.start()
        assert running.join() == [0, 0]
        assert json.loads((running.out(0) / "result.json").read_text())["status"] == "finished"
    assert Credentials.of(tmp_path / "certs", 0).key.exists()
