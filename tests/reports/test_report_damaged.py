"""A report about a run whose files are damaged names the file, and is not written."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_cases import write_run

from peermask.errors import RunError
from peermask.reports.page import write_report


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        (
            "manifest.json",
            b"{}",
            r"manifest\.json is damaged \(config_hash: Field required, perhaps as version 1\.0 wrote it\)",
        ),
        ("metrics.csv", b"\xff\xfe\x00", r"metrics\.csv is damaged \(line 1: byte 0xff is no text\)"),
        ("metrics.csv", b"round,agent,density\n5,0,0.3\n", r"metrics\.csv is damaged \(line 1: no column 'test_acc"),
        ("traffic.csv", b"round,agent\n1,0\n", r"traffic\.csv is damaged \(line 1: no column 'links'\)"),
        ("traffic.csv", b"round,agent,links\n1,0\n", r"traffic\.csv is damaged \(line 2: 2 values for 3 columns\)"),
        ("absences.csv", b"round,agent,neighbour\n1,0,x\n", r"absences\.csv is damaged \(line 2: neighbour 'x'"),
        ("masks/round-000010.npz", b"junk", r"^masks .*round-000010\.npz are damaged: .*; delete that file$"),
        ("masks/round-000010.npz", b"", r"^masks .*round-000010\.npz are damaged"),
        ("masks/round-000010.npz", b"PK\x03\x04 junk", r"^masks .*round-000010\.npz are damaged"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    run = write_run(tmp_path / "a", finished=False)  # of one that is, digests differ first
    (run / name).write_bytes(content)
    with pytest.raises(RunError, match=what) as caught:
        write_report([run])
    assert "cannot write" not in str(caught.value)
    assert "allow_pickle" not in str(caught.value)
    assert not (run / "report.html").exists()
