"""The page as a server: what it answers, and to whom."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest
from report_cases import write_run

from peermask.errors import RunError
from peermask.page_server import PageServer, serve_pages
from peermask.reports.watch import make_server
from peermask.run.metrics import METRICS
from peermask.store.checkpoint import save_masks
from peermask.store.folder import RunFolder
from peermask.store.table import append_rows
from waiting import PATIENCE


@contextmanager
def served(path: Path) -> Iterator[PageServer]:
    with serve_pages(make_server([path])) as server:
        yield server


def ask(server: PageServer, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_the_page_and_its_data_are_served_on_loopback(tmp_path: Path) -> None:
    with served(write_run(tmp_path / "a", finished=False)) as server:
        assert server.url.startswith("http://127.0.0.1:")
        answer, page = ask(server, "/")
        assert answer.status == 200
        assert b'"live":true' in page
        answer, data = ask(server, "/data.json")
        assert json.loads(data)["runs"][0]["round"] == 20


def test_the_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", finished=False)
    # Tests that a shell runs in the background ignore Ctrl-C, and so would what they start.
    as_from_a_terminal = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{as_from_a_terminal}; from peermask.__main__ import main; main()"
    command = [sys.executable, "-c", code, "watch", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split()[0]
            with urlopen(f"{url}data.json", timeout=PATIENCE) as answer:
                assert json.load(answer)["runs"][0]["round"] == 20
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, said) == (130, "")


def test_data_that_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", finished=False)
    with served(run) as server:
        tag = ask(server, "/data.json")[0].headers["ETag"]
        assert ask(server, "/data.json", **{"If-None-Match": tag})[0].status == 304
        row = [25, 0, 1.0, 0.9, 1.0, 0.9, 1.0, 0.3, 1.0, 13.0, "nan", *[0.9] * (len(METRICS) - 11)]
        append_rows(RunFolder(run).metrics, METRICS, [row])
        answer, data = ask(server, "/data.json", **{"If-None-Match": tag})
        assert answer.status == 200
        assert json.loads(data)["runs"][0]["curves"]["rounds"][-1] == 25


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(tmp_path: Path, method: str) -> None:
    with served(write_run(tmp_path / "a")) as server:
        assert ask(server, "/", method)[0].status == 501


def test_no_other_file_is_served_and_no_other_name_answered(tmp_path: Path) -> None:
    with served(write_run(tmp_path / "a")) as server:
        for path in ("/config.toml", "/../config.toml", "//etc/passwd", "/data.json/x"):
            assert ask(server, path)[0].status == 404
        assert ask(server, "/", Host="evil.example")[0].status == 403
        assert ask(server, "/", Host="localhost:1")[0].status == 200


def test_a_run_that_has_just_begun_is_waited_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=4, masks_at=(), finished=False)
    with served(run) as server:
        assert json.loads(ask(server, "/data.json")[1])["runs"][0]["curves"]["rounds"] == []


def test_a_row_half_written_is_waited_for(tmp_path: Path) -> None:
    run = RunFolder(write_run(tmp_path / "a", finished=False))
    with served(run.path) as server:
        before = json.loads(ask(server, "/data.json")[1])
        with run.metrics.open("a") as file:
            file.write("25,0,1.0,0.9")
        assert json.loads(ask(server, "/data.json")[1]) == before
        with run.metrics.open("a") as file:
            file.write(",1.0,0.9,1.0,0.3,1.0,13.0,nan,0.9,0.9,0.9,0.9,0.9,0.9,0.9,0.9\n")
        assert json.loads(ask(server, "/data.json")[1])["runs"][0]["curves"]["rounds"][-1] == 25


def test_a_fleet_is_shown_while_its_agents_still_write_apart(tmp_path: Path) -> None:
    whole = RunFolder(write_run(tmp_path / "whole", absences=True))
    for agent in range(4):
        own = RunFolder(tmp_path / "fleet" / "agents" / f"agent-{agent}")
        own.create()
        own.config.write_text(whole.config.read_text())
        own.manifest.write_text(whole.manifest.read_text())
        rows = [line.split(",") for line in whole.metrics.read_text().splitlines()[1:]]
        append_rows(own.metrics, METRICS, [row for row in rows if row[1] == str(agent)])
        save_masks(own.masks, 10, np.ones((1, 392), bool))
    with served(tmp_path / "fleet") as server:
        (run,) = json.loads(ask(server, "/data.json")[1])["runs"]
    assert [agent["accuracy"] for agent in run["agents"]] == pytest.approx([0.9, 0.91, 0.92, 0.93])
    assert run["masks"]["rounds"] == [10]


def test_a_folder_that_is_no_run_or_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        make_server([tmp_path])
    run = write_run(tmp_path / "a")
    with make_server([run]) as server, pytest.raises(RunError, match=r"cannot serve on 127\.0\.0\.1"):
        make_server([run], port=int(server.server_address[1]))
