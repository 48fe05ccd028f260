"""`peermask watch`: the report of a run in progress."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer


def watch(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, in progress or finished.")],
    host: Annotated[
        str, typer.Option(help="Address to serve on; any non-loopback address exposes the page.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free port.")] = 8321,
    open_: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Serve the report of a run live, read-only, until interrupted."""
    from peermask.reports.watch import make_server

    with make_server(runs, host, port) as server:
        print(f"{server.url} (Ctrl-C ends it)", flush=True)
        if open_:
            webbrowser.open(server.url)
        server.serve_forever()
