"""Replacing a fleet's authority: both are trusted for a while, nobody is offline, then the earlier one is refused."""

from __future__ import annotations

import base64
import os
import shutil
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from devices import all_heard
from fleet_cases import refused, tiny, tiny_fleet, written
from fleet_process import ProcessFleet, relay_process
from test_intruders import is_let_in
from test_relay import relayed_fleet
from test_watch import Device

from peermask.errors import NodeError
from peermask.fleet.authority import (
    authority_texts,
    install_authorities,
    make_authority,
    open_authority,
    replace_authority,
    retire_authority,
    sign,
    verifier,
    write_authorities,
)
from peermask.fleet.certificates import make_certificates, make_operator, newest_authority, sign_agent
from peermask.fleet.credentials import (
    LARGEST_BYTES,
    Credentials,
    check_credentials,
    find_operator,
    issuer_of,
    load_authorities,
    load_certificate,
    load_keys,
    write_keys,
    write_private,
)
from peermask.fleet.fleet import load_fleet, write_fleet
from peermask.fleet.operator import Refused, ask
from peermask.fleet.roster import encode_roster, next_roster, read_signed, signed_roster
from peermask.fleet.roster_gossip import check_signed

FLEET = tiny_fleet()


def test_new_certificates_are_of_the_new_authority_and_earlier_ones_stay_valid_until_it_is_retired(certs):
    (earlier,) = load_authorities(certs / "ca.pem")
    texts = replace_authority(certs)
    newest, other = load_authorities(certs / "ca.pem")
    assert (other, texts) == (earlier, authority_texts([newest, earlier]))
    assert open_authority(certs)[0] == newest
    assert (certs / "ca.key").stat().st_mode & 0o777 == 0o600
    make_certificates(FLEET, certs, renew=(0,))
    for agent, issuer in ((0, newest), (1, earlier)):
        check_credentials(FLEET, certs, agent)
        assert issuer_of(load_certificate(certs / f"agent-{agent}.pem", agent), [newest, earlier]) == issuer
    retire_authority(certs)
    assert (load_authorities(certs / "ca.pem"), len(load_keys(certs / "ca.key"))) == ((newest,), 1)
    check_credentials(FLEET, certs, 0)
    with pytest.raises(NodeError, match=r"agent-1.pem was not issued by .*ca.pem; make it again"):
        check_credentials(FLEET, certs, 1)


def test_a_roster_of_the_overlap_is_verified_by_who_knows_either_authority(certs, tmp_path):
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    shutil.copy(certs / "ca.pem", tmp_path / "old")
    texts = replace_authority(certs)
    write_authorities(tmp_path / "new" / "ca.pem", load_authorities(certs / "ca.pem")[:1])
    later = next_roster(FLEET, authorities=texts)
    data = signed_roster(later.model_copy(update={"signature": sign(certs, encode_roster(later))}))
    for folder in (tmp_path / "old", tmp_path / "new", certs):
        assert read_signed(data, FLEET, verifier(folder / "ca.pem")).authorities == texts
    retire_authority(certs)
    alone = later.model_copy(update={"signature": sign(certs, encode_roster(later))})
    with pytest.raises(NodeError, match="it is not signed by this fleet's authority"):
        read_signed(signed_roster(alone), FLEET, verifier(tmp_path / "old" / "ca.pem"))


def test_an_authority_in_use_is_not_retired(certs):
    with pytest.raises(NodeError, match=r"holds one authority, which cannot be retired"):
        newest_authority(FLEET, certs)
    make_operator(certs, "ann", 30)
    named = replace_authority(certs)
    with pytest.raises(NodeError, match=r"holds 2 authorities already; retire the earlier one first"):
        replace_authority(certs, named)
    with pytest.raises(NodeError, match=r"agent-0.pem is of the authority that is to be retired; .*fleet renew FLEET"):
        newest_authority(FLEET, certs)
    make_certificates(FLEET, certs, renew=range(4))
    with pytest.raises(NodeError, match=r"operator-ann.pem is of the authority .*fleet operator FLEET NAME"):
        newest_authority(FLEET, certs)
    assert newest_authority(FLEET.model_copy(update={"revoked_operators": ("ann",)}), certs)
    make_operator(certs, "ann", 30)
    assert newest_authority(FLEET, certs) == authority_texts(load_authorities(certs / "ca.pem")[:1])


def test_an_interrupted_change_is_begun_again(certs):
    """The keys are written first: one without a certificate is not used."""
    first = load_keys(certs / "ca.key")
    write_keys(certs / "ca.key", make_authority()[1], *first)
    assert open_authority(certs)[1].public_key() == first[0].public_key()
    replace_authority(certs)
    assert load_keys(certs / "ca.key")[1].public_key() == first[0].public_key()


def test_a_change_that_was_interrupted_before_its_roster_was_written_is_finished(certs):
    """Otherwise `renew` would make certificates of an authority that no agent trusts."""
    named, keys = replace_authority(certs), (certs / "ca.key").read_bytes()
    assert replace_authority(certs, named[1:]) == named
    assert (certs / "ca.key").read_bytes() == keys


def test_an_old_roster_does_not_bring_back_an_authority_that_was_retired(certs):
    ca = certs / "ca.pem"
    texts = [authority_texts(load_authorities(ca))[0]]
    for _ in range(2):
        named = replace_authority(certs)
        assert not install_authorities(ca, named)
        retire_authority(certs)
        before = ca.read_bytes()
        assert not install_authorities(ca, named)
        assert ca.read_bytes() == before
        texts.append(named[0])
    first, second, third = texts
    write_authorities(ca, [*load_authorities(ca), load_pem(second)])
    assert install_authorities(ca, [second, first])  # of before the third: that comes back with the present roster
    assert authority_texts(load_authorities(ca)) == (second,)
    assert install_authorities(ca, [third, second])


def load_pem(text):
    return x509.load_der_x509_certificate(base64.b64decode(text))


def test_a_file_that_names_authorities_is_signed_even_if_the_roster_never_changed(certs):
    forged = FLEET.model_copy(update={"authorities": authority_texts([make_authority()[0]])})
    with pytest.raises(NodeError, match=r"roster 0 of the fleet file is not signed by ca.pem"):
        check_signed(forged, verifier(certs / "ca.pem"))


def test_signatures_have_one_form_so_that_whoever_gets_them_can_pass_them_on(certs):
    replace_authority(certs)
    verify, signed = verifier(certs / "ca.pem"), sign(certs, b"roster")
    new, old = signed.split(",")
    assert all(verify(b"roster", form) for form in (signed, new, old, f"{old},{new}"))
    for other in (700 * "\ufffd" + f",{new}", f"{signed},{new}", new.upper(), f" {new}", f"{new},", ""):
        assert not verify(b"roster", other)


def test_agents_of_one_folder_that_write_the_bundle_at_once_leave_a_whole_one(tmp_path, monkeypatch):
    path, open_ = tmp_path / "ca.pem", os.open

    def overtaken(*arguments):
        descriptor = open_(*arguments)
        monkeypatch.setattr(os, "open", open_)
        monkeypatch.setattr(os, "getpid", lambda: 1)
        write_private(path, b"of another process", 0o644)
        return descriptor

    monkeypatch.setattr(os, "open", overtaken)
    before = os.umask(0o077)  # as an agent has
    try:
        write_private(path, b"whole", 0o644)
    finally:
        os.umask(before)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"whole", 0o644)
    assert list(tmp_path.iterdir()) == [path]


def test_an_authority_whose_key_is_lost_is_replaced(certs):
    (certs / "ca.key").unlink()
    with pytest.raises(NodeError, match=r"restore that, or replace the authority: `peermask fleet certs FLEET --new-a"):
        make_certificates(FLEET, certs, renew=(0,))
    replace_authority(certs)
    assert (len(load_authorities(certs / "ca.pem")), len(load_keys(certs / "ca.key"))) == (2, 1)
    make_certificates(FLEET, certs, renew=range(4))
    for agent in range(4):
        check_credentials(FLEET, certs, agent)


def test_a_bundle_with_a_damaged_block_too_many_or_too_much(certs):
    replace_authority(certs)
    whole = (certs / "ca.pem").read_bytes()
    second = whole.rindex(b"-----BEGIN CERTIFICATE-----") + len(b"-----BEGIN CERTIFICATE-----\n")
    for damaged in (
        whole.replace(b"BEGIN", b"BEGJN", 1),  # left out, if nobody counts
        whole[: second + 100],
        whole[:second] + b"A" * 60 + whole[second + 60 :],
    ):
        (certs / "ca.pem").write_bytes(damaged)
        with pytest.raises(NodeError, match=r"ca.pem is not a PEM certificate, or is damaged; copy it again"):
            load_authorities(certs / "ca.pem")
    write_authorities(certs / "ca.pem", [make_authority()[0] for _ in range(3)])
    with pytest.raises(NodeError, match=r"ca.pem holds 3 certificates, allowed: 2"):
        load_authorities(certs / "ca.pem")
    (certs / "ca.pem").write_bytes(whole * 100)
    with pytest.raises(NodeError, match=rf"has more than {LARGEST_BYTES} bytes"):
        load_authorities(certs / "ca.pem")
    shutil.copy(certs / "agent-1.pem", certs / "agent-0.pem")
    (certs / "ca.pem").write_bytes(whole)
    (certs / "agent-0.pem").write_bytes(2 * (certs / "agent-1.pem").read_bytes())
    with pytest.raises(NodeError, match=r"agent-0.pem holds 2 certificates, allowed: 1"):
        check_credentials(FLEET, certs, 0)


def test_authorities_of_a_roster_that_cannot_be_read_leave_the_file_alone(certs):
    before = (certs / "ca.pem").read_bytes()
    (text,) = authority_texts([make_authority()[0]])
    for texts, words in (
        (["!"], "an authority in the roster is damaged"),
        ([text[:-40]], "an authority in the roster is damaged"),
    ):
        with pytest.raises(NodeError, match=words):
            install_authorities(certs / "ca.pem", texts)
    assert not install_authorities(certs / "ca.pem", ())
    assert not install_authorities(certs / "ca.pem", authority_texts(load_authorities(certs / "ca.pem")))
    assert (certs / "ca.pem").read_bytes() == before


def test_no_certificate_outlives_its_authority(certs):
    """So an authority that has expired in the meantime, and is still in the bundle, admits nobody."""
    authority = open_authority(certs)
    own = load_keys(certs / "agent-0.key")[0].public_key()
    signed = sign_agent("agent-0", "127.0.0.1", own, authority, timedelta(days=10_000))
    assert signed.not_valid_after_utc == authority[0].not_valid_after_utc
    (certs / "agent-0.pem").write_bytes(signed.public_bytes(Encoding.PEM))
    check_credentials(FLEET, certs, 0, datetime.now(UTC) + timedelta(days=3000))
    with pytest.raises(NodeError, match=r"agent-0.pem expired"):
        check_credentials(FLEET, certs, 0, datetime.now(UTC) + timedelta(days=4000))


def test_wrong_commands_are_one_line(call, tmp_path):
    path = written(tmp_path, FLEET)
    assert "ca.pem does not exist" in refused(call("fleet", "certs", path, "--new-authority"))
    assert call("fleet", "certs", path)[0] == 0
    assert "holds one authority" in refused(call("fleet", "certs", path, "--retire-authority"))
    both = call("fleet", "certs", path, "--retire-authority", "--new-authority")
    assert "exclude each other" in refused(both)
    assert load_fleet(path).serial == 0


def test_a_new_authority_reaches_an_agent_by_its_roster_and_replaces_its_file(tmp_path):
    device, ca = Device(tmp_path), tmp_path / "certs" / "ca.pem"
    home = shutil.copytree(tmp_path / "certs", tmp_path / "home")
    zero = device.neighbour(0)

    def roster(before, texts):
        later = next_roster(before, authorities=texts)
        return later.model_copy(update={"signature": sign(home, encode_roster(later))})

    with device.watch:
        overlap = roster(device.fleet, replace_authority(home))
        zero.take(overlap)
        device.time.until(lambda: device.opened == [0, 1])
        assert load_authorities(ca) == load_authorities(home / "ca.pem")
        retired = roster(overlap, overlap.authorities[:1])
        retire_authority(home)
        later = next_roster(retired)
        zero.take(later.model_copy(update={"signature": sign(home, encode_roster(later))}))  # of the new one alone
        # Its own certificate is of the earlier one: it has no session until it gets another.
        device.time.until(lambda: any("was not issued by" in line for line in device.lines))
        make_certificates(device.fleet, home, renew=(1,))
        for end in ("key", "pem"):
            shutil.copy(home / f"agent-1.{end}", tmp_path / "certs")
        device.time.until(lambda: device.opened == [0, 1, 3])
        assert not device.watch.is_over
    assert device.lines[0] == "trusts 2 authorities by roster 1"
    assert "trusts 1 authority by roster 3" in device.lines


def test_a_bundle_that_was_copied_is_used_and_a_damaged_one_is_not(tmp_path):
    """The way if the authority's key is lost: nobody has signed the new one."""
    device = Device(tmp_path)
    home = shutil.copytree(tmp_path / "certs", tmp_path / "home")
    (home / "ca.key").unlink()
    later = next_roster(device.fleet, authorities=replace_authority(home))
    with device.watch:
        write_fleet(device.path, later.model_copy(update={"signature": sign(home, encode_roster(later))}))
        device.time.until(lambda: device.lines)
        assert device.lines[-1].endswith("its roster is not signed by this fleet's authority")
        (tmp_path / "certs" / "ca.pem").write_bytes(b"x" + (home / "ca.pem").read_bytes()[::-1])
        device.time.until(lambda: len(device.lines) > 1)
        assert device.lines[-1].endswith("or is damaged; copy it again; until then the certificate in use stays")
        shutil.copy(home / "ca.pem", tmp_path / "certs")
        device.time.until(lambda: device.adopted == [(1, frozenset())])
        device.time.until(lambda: device.opened[-1] == 1)
    assert len(device.lines) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")
def test_a_fleet_changes_its_authority_while_it_runs_and_nobody_is_offline(devices, tmp_path):
    """With `wait` no round is played without a neighbour: that all are played proves that nobody was offline."""
    made = devices(tiny(agents=3, rounds=100_000), missing="wait")
    fleet, held = made.fleet, made.fleet.fleet
    fleet.hold(3)
    made.start(0, 1, 2)
    fleet.until_round(0, 3)
    made.command("operator", "ann")
    before = shutil.copytree(made.home / "certs", tmp_path / "before")

    assert "once `fleet status` shows roster 1 everywhere" in made.command("certs", "--new-authority")
    made.give(0, certificate=False)  # to one of them
    for agent in range(3):
        fleet.until_said(agent, "trusts 2 authorities by roster 1")
    made.until_known(1, 0, 1, 2)
    assert "3 certificates renewed" in made.command("renew")
    for agent in range(3):  # one after another: old and new ones speak with each other
        made.give(agent, file=False)
        fleet.until_said(agent, "has a new certificate")
        fleet.until(agent, all_heard(2), "everybody", since=len(fleet.reports(agent)))
    late = Credentials(made.home / "certs" / "ca.pem", *_files(before, "agent-2"))  # it trusts the fleet
    assert is_let_in(held, late, 0, agent=2)

    made.command("operator", "ann")
    made.command("certs", "--retire-authority")
    made.give(2, certificate=False)
    for agent in range(3):
        fleet.until_said(agent, "trusts 1 authority by roster 2")
    newest = load_authorities(made.home / "certs" / "ca.pem")
    assert all(load_authorities(tmp_path / f"device-{agent}" / "certs" / "ca.pem") == newest for agent in range(3))
    for agent in range(3):
        fleet.until(agent, all_heard(2), "everybody", since=len(fleet.reports(agent)))
        assert not [report for report in fleet.reports(agent) if report["absent"]]

    assert [owner for owner in (0, 1) if is_let_in(held, late, owner, agent=2)] == []
    operator = Credentials(late.ca, *_files(before, "operator-ann"))
    with pytest.raises(Refused, match="does not accept this operator's certificate"):
        ask(held, operator, 0, "status")
    assert ask(held, find_operator(made.home / "certs"), 0, "status")


def _files(folder, name):
    return folder / f"{name}.pem", folder / f"{name}.key"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and signalled as on Linux")
def test_a_relay_changes_its_authority_too(call, tmp_path):
    """All files are in one folder, as with `swarm`: agents and relay notice them there."""
    held = relayed_fleet(tiny(agents=2, rounds=100_000, graph={"name": "path"}), {0, 1}, missing="wait")
    with ProcessFleet(written(tmp_path, held), held) as made, relay_process(made) as relay:
        made.hold(3)
        made.start()
        made.until_round(0, 3)
        assert call("fleet", "certs", made.path, "--new-authority")[0] == 0
        relay.until_said("relay: uses the certificates that it has now")
        assert call("fleet", "renew", made.path)[0] == 0
        made.until_said(0, "has a new certificate")
        made.until_said(1, "has a new certificate")
        assert call("fleet", "certs", made.path, "--retire-authority")[0] == 0
        relay.until_said("roster 2: 2 agents")
        for agent in (0, 1):
            made.until_said(agent, "roster 2 from round")
            made.until(agent, all_heard(1), "the other", since=len(made.reports(agent)))
            assert not [report for report in made.reports(agent) if report["absent"]]
