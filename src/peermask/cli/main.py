"""The command `peermask`: parse, call one library function, print one answer."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from peermask.cli.export import evaluate, export, predict, profile
from peermask.cli.fleet import fleet_app
from peermask.cli.node import node, swarm
from peermask.cli.operate import operator, push, relay, service, status
from peermask.cli.paper import reproduce, theory
from peermask.cli.plan import data, list_things, plan
from peermask.cli.run import run
from peermask.cli.show import report, runs_app, show, watch
from peermask.errors import PeermaskError

# The base class of typer's own errors, for mistakes on the command line; typer may bundle its own click.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="peermask",
    help="Agents on a graph learn personal sparse models by exchanging binary masks.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class _OneLine(logging.Handler):
    """A warning as one line on the stderr of the moment: a live display replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"peermask: {record.getMessage()}", file=sys.stderr, flush=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"peermask {version('peermask')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


for command in (run, plan, data, list_things, show, reproduce, node, swarm, relay, report, watch, export, predict,
                evaluate, profile, theory):  # fmt: skip
    app.command("list" if command is list_things else None)(command)
for other in (operator, status, push, service):
    fleet_app.command()(other)
app.add_typer(fleet_app, name="fleet")
app.add_typer(runs_app, name="runs")


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user's mistake is one line on stderr and exit code 2, a passing fault one line and 75."""
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given == ["fleet"]:
        given = [*given, "--help"]
    if sys.stderr is None:  # `2>&-`; print would write to stdout instead
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (until the process ends)
    if sys.stdout is None:  # `>&-`; the next file to be opened would take its place
        _fail("standard output is closed; send it to a file, or to /dev/null")
    logging.getLogger("peermask").handlers = [_OneLine()]
    try:
        code = app(args=given, standalone_mode=False)
        sys.stdout.flush()
    except PeermaskError as error:
        _fail(str(error), error.exit_code)
    except UsageError as error:
        _fail(error.format_message())  # type: ignore[attr-defined]
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # `peermask show RUN | head`
        sys.stderr.close()
        sys.exit(0)
    except MemoryError:
        _fail("this machine has too little memory for that")
    except OSError as error:  # `peermask show RUN > FILE` on a full disk; all other files say which they are
        with suppress(OSError):  # what is left in the buffer would fail again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"{error.filename or 'cannot write the output'}: {error.strerror or error}")
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int = 2) -> None:
    print(f"peermask: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
