"""Who has no certificate, a foreign one or an expired one hears and says nothing; who has one speaks for itself."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import timedelta

import pytest
import zenoh
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fleet_cases import PATIENT, simulated, tiny, tiny_fleet, written
from fleet_process import ProcessFleet

from peermask.fleet.authority import make_authority, open_authority
from peermask.fleet.certificates import sign_agent
from peermask.fleet.credentials import Credentials
from peermask.fleet.messages import ExperimentId, Greeting
from peermask.fleet.sessions import alive_key, ask_key, session_settings

PEM = serialization.Encoding.PEM


def credentials(folder, agent, authority, valid=timedelta(days=1)):
    """Files of an agent signed by any authority, for any time."""
    folder.mkdir()
    own = ec.generate_private_key(ec.SECP256R1())
    files = Credentials.of(folder, agent)
    files.ca.write_bytes(authority[0].public_bytes(PEM))
    files.certificate.write_bytes(
        sign_agent(f"agent-{agent}", "127.0.0.1", own.public_key(), authority, valid).public_bytes(PEM)
    )
    files.key.write_bytes(own.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return files


@contextmanager
def session(fleet, files, agent=3, **changes):
    """A session that dials every agent and follows no rule of its own."""
    settings = session_settings(fleet, agent, files, 2**20)
    settings.pop("access_control", None)
    settings["listen/endpoints"] = []
    settings["connect/endpoints"] = [
        f"{'tls' if files else 'tcp'}/{member.address}" for member in fleet.agents if member.agent != agent
    ]
    settings |= changes
    config = zenoh.Config()
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    with zenoh.open(config) as opened:
        yield opened


def answers(opened, owner, asker, seconds=1.0):
    greeting = Greeting(ExperimentId("", "", ""), 0).encode()
    replies = opened.get(ask_key(owner, asker), payload=greeting, timeout=seconds)
    return [reply for reply in replies if reply.ok is not None]


def is_let_in(fleet, files, owner, **changes):
    """Whether a session to an agent can be made, at the first try."""
    once = {"connect/timeout_ms": 0, "connect/exit_on_failure": True}
    dialled = {"connect/endpoints": [f"{'tls' if files else 'tcp'}/{fleet.member(owner).address}"]}
    try:
        with session(fleet, files, **dialled, **once, **changes):
            return True
    except zenoh.ZError:
        return False


@pytest.fixture
def running(tmp_path):
    """A fleet of four whose agent 3 is not there, so that its place can be taken; it waits for 3 in round 1."""
    held = tiny_fleet(tiny(rounds=8), **PATIENT, missing="wait")
    with ProcessFleet(written(tmp_path, held), held) as made:
        made.start(0, 1, 2)
        for agent in (0, 1, 2):
            made.until_listening(agent)
        yield made


def test_intruders_are_refused_and_the_run_is_unharmed(running, tmp_path):
    certs, fleet = tmp_path / "certs", running.fleet
    foreign = credentials(tmp_path / "foreign", 3, make_authority())
    foreign.ca.write_bytes((certs / "ca.pem").read_bytes())  # it trusts the fleet; the fleet does not trust it
    expired = credentials(tmp_path / "expired", 3, open_authority(certs), -timedelta(days=1))
    intruders = {
        "plain tcp": (None, {}),
        "no certificate": (
            Credentials.of(certs, 3),
            {"transport/link/tls/enable_mtls": False, "transport/link/tls/connect_certificate": None,
             "transport/link/tls/connect_private_key": None},
        ),
        "foreign authority": (foreign, {}),
        "expired": (expired, {}),
    }  # fmt: skip
    for name, (files, changes) in intruders.items():
        assert [owner for owner in (0, 1, 2) if is_let_in(fleet, files, owner, **changes)] == [], name
    with session(fleet, credentials(tmp_path / "stranger", 77, open_authority(certs))) as opened:
        for owner in (0, 1, 2):
            running.until_said(owner, "a device with the certificate of agent-77 is ignored", playing=False)
        assert [owner for owner in (0, 1, 2) if answers(opened, owner, 3)] == []
    forge_as_agent_3(running, tmp_path)
    running.start(3)
    assert running.join() == [0] * 4
    assert running.collect().hash == simulated(fleet.experiment, tmp_path / "sim").hash


def forge_as_agent_3(running, tmp_path):
    """A valid peer tries to ask, answer and be alive as another."""
    fleet, certs = running.fleet, tmp_path / "certs"
    assert is_let_in(fleet, Credentials.of(certs, 3), 0)
    with session(fleet, Credentials.of(certs, 3)) as opened:
        running.until_true(lambda: all(answers(opened, owner, 3) for owner in (0, 2)), "answers")
        running.until_said(1, "a device with the certificate of agent-3 is ignored", playing=False)
        assert answers(opened, 1, 3) == []  # over the links of the ring alone
        assert [owner for owner in (0, 1, 2) if answers(opened, owner, 1)] == []
        asked = []
        elsewhere = zenoh.Locality.REMOTE
        forged = [
            opened.declare_queryable(key, lambda query: asked.append(str(query.key_expr)), allowed_origin=elsewhere)
            for key in (ask_key(1, "*"), "**")
        ]
        token = opened.liveliness().declare_token(alive_key(1))
        for key in (alive_key(1), ask_key(1, 0), "**"):
            opened.put(key, b"forged")
            opened.delete(key)
        # After a round trip everything above has arrived or been dropped.
        running.until_true(lambda: answers(opened, 0, 3), "an answer")
        assert asked == []
        token.undeclare()  # agent 1 is still there for the others
        for one in forged:
            one.undeclare()
