"""Tickets: small, exact, and safe to open whoever sent them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from export_cases import run_small, untrained_alexnet
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import peermask
from peermask.config.file import make_config
from peermask.errors import ExportError
from peermask.exports.personal import Personal, open_personal
from peermask.exports.rebuild import rebuild
from peermask.exports.ticket import DIGEST_BYTES, HEAD, MAGIC, MAX_HEADER_BYTES, VERSION, decode_ticket
from peermask.exports.write import export, make_ticket
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment

# Few parameters, but a forward pass that would take 275 GB.
WIDE = {"name": "cnn", "options": {"channels": [65536, 1], "hidden": 1}, "shape": [1, 1024, 1024], "layers": ["*"]}
IMAGES = torch.linspace(-1, 1, 5 * 64).view(5, 1, 8, 8)


PERSONAL = {"algorithm": "accord", "rounds": 4}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mask": {"rescale": True}},
        {"frozen": {"bias_init": "torch-default"}},
        PERSONAL,
        {**PERSONAL, "mask": {"rescale": True}},
    ],
)
def test_a_ticket_gives_the_agents_model_back_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    result = run_small(tmp_path / "run", **changes)
    for agent, model in enumerate(result.local_models()):
        export(result, agent, tmp_path / "a.ticket", force=agent > 0)
        loaded = peermask.load_ticket(tmp_path / "a.ticket")
        assert torch.equal(loaded(IMAGES), model(IMAGES))
        assert not loaded.training


@pytest.mark.parametrize(("retention", "limit"), [(0.4, 145_000), (0.1, 78_000)])
def test_a_ticket_of_the_papers_network_is_small(retention: float, limit: int) -> None:
    """float32: 4.9 MB; the fc layers keep 0.9."""
    personal = untrained_alexnet(retention)
    assert 4 * personal.layout.total > 4.9e6
    assert len(make_ticket(personal).encode()) <= limit


def test_a_ticket_says_where_it_comes_from(result: RunResult) -> None:
    about = make_ticket(open_personal(result, 1)).header.about
    assert (about.agent, about.round, about.algorithm, about.dataset) == (1, 2, "mce-pl", "digits")
    assert about.labels == result.agents[1].labels
    assert about.test_accuracy == result.agents[1].test_accuracy_last


def test_trained_weights_are_no_ticket(result: RunResult) -> None:
    personal = open_personal(result, 0)
    trained = Personal(result, 0, personal.experiment, personal.params * 1.5, 2, own_module=False)
    with pytest.raises(ExportError, match=r"not a mask over frozen ones.*\.safetensors or \.onnx"):
        make_ticket(trained)


def test_a_network_of_ones_own_has_to_be_brought_along(tmp_path: Path) -> None:
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10))
    config = make_config(
        {"agents": 3, "rounds": 1, "graph": {"name": "ring"}, "data": {"fraction": 0.1}, "retention": 0.5}
    )
    result = run_experiment(config, tmp_path / "run", execution=Execution("cpu"), module=own)
    with pytest.raises(ExportError, match=r"another network than model.name = .*module="):
        export(tmp_path / "run", 0, tmp_path / "a.ticket")
    export(result, 0, tmp_path / "a.ticket")  # which remembers it
    with pytest.raises(ExportError, match=r"load_ticket\(path, module=\.\.\.\)"):
        peermask.load_ticket(tmp_path / "a.ticket")
    loaded = peermask.load_ticket(tmp_path / "a.ticket", module=own)
    assert loaded(IMAGES).shape == (5, 10)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 9))
    with pytest.raises(ExportError):
        peermask.load_ticket(tmp_path / "a.ticket", module=other)


def sealed(header: dict[str, Any] | bytes, frame: bytes = b"", version: int = VERSION) -> bytes:
    """A file whose checksum is right, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    content = HEAD.pack(MAGIC, version, len(text)) + text + frame
    return content + hashlib.sha256(content).digest()


@pytest.fixture(scope="module")
def good(result: RunResult) -> tuple[dict[str, Any], bytes]:
    ticket = make_ticket(open_personal(result, 0))
    return json.loads(ticket.header.model_dump_json()), ticket.frame


def test_a_sealed_header_is_read_as_it_was_written(good: tuple[dict[str, Any], bytes]) -> None:
    assert rebuild(decode_ticket(sealed(*good)))(IMAGES).shape == (5, 10)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("architecture.name", "os.system", "unknown model 'os.system'"),
        ("architecture.name", "resnet18", "options of 'resnet18'"),
        ("architecture.options", {"channels": [65536, 65536], "hidden": 65536}, "parameters; at most"),
        ("architecture.options", {"channels": [1] * 1000}, "1000 items"),
        ("architecture", WIDE, "values between two layers"),
        ("architecture.options", {"hidden": "16; import os"}, "options of 'cnn'"),
        ("architecture.shape", [1, 10**7, 8], r"architecture\.shape"),
        ("architecture.shape", [1, 2, 2], "does not fit|outputs|keeps"),
        ("architecture.layers", ["nothing*"], "matches no layer"),
        ("classes", ["a"], "keeps|outputs"),
        ("frozen.init", "pickle", "unknown init 'pickle'"),
        ("frozen.seed", 1, "frozen weights"),
        ("frozen.seed", -1, r"frozen\.seed"),
        ("keep", [1, 1, 1, 10**9], "keeps"),
        ("keep", [0, 1, 1, 1], "keep"),
        ("about.agent", 2, "mask that cannot be read: .*agent"),
        ("readout", "mine", "readout: Input should be 'all' or 'own'"),
        ("extra", 1, "extra"),
    ],
)
def test_a_hostile_header_is_one_clear_error(
    good: tuple[dict[str, Any], bytes], place: str, value: object, message: str
) -> None:
    header = json.loads(json.dumps(good[0]))
    table, parts = header, place.split(".")
    for part in parts[:-1]:
        table = table[part]
    table[parts[-1]] = value
    with pytest.raises(ExportError, match=message) as caught:
        rebuild(decode_ticket(sealed(header, good[1]), "evil.ticket"), "evil.ticket")
    assert "evil.ticket" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", [b"[" * 60000, b"{", b"\xff\xfe", b"null", b'{"a": 1e999}', b""])
def test_a_header_that_is_no_header_is_one_clear_error(text: bytes) -> None:
    with pytest.raises(ExportError, match="header"):
        decode_ticket(sealed(text))


def test_sizes_are_checked_before_anything_is_read() -> None:
    with pytest.raises(ExportError, match="too much"):
        decode_ticket(sealed(b" " * (MAX_HEADER_BYTES + 1)))
    content = HEAD.pack(MAGIC, VERSION, 50000)
    with pytest.raises(ExportError, match="past its end"):
        decode_ticket(content + hashlib.sha256(content).digest())
    with pytest.raises(ExportError, match="version 9"):
        decode_ticket(HEAD.pack(MAGIC, 9, 0) + bytes(DIGEST_BYTES))


@given(st.data())
def test_a_damaged_file_never_gives_a_model(good: tuple[dict[str, Any], bytes], data: st.DataObject) -> None:
    whole = bytearray(sealed(*good))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for bad in (bytes(whole), bytes(whole[:cut])):
        with pytest.raises(ExportError):
            decode_ticket(bad)


@given(st.binary(max_size=300))
def test_any_bytes_as_a_mask_are_refused(good: tuple[dict[str, Any], bytes], frame: bytes) -> None:
    with pytest.raises(ExportError, match="mask that cannot be read"):
        rebuild(decode_ticket(sealed(good[0], frame)))


def test_a_file_that_is_not_there_or_no_ticket_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot be read"):
        peermask.load_ticket(tmp_path / "nothing.ticket")
    (tmp_path / "a.ticket").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(ExportError, match="not a ticket"):
        peermask.load_ticket(tmp_path / "a.ticket")
