"""`peermask relay`: joins agents of a fleet that cannot dial each other."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from peermask.cli.fleet_argument import FleetFile, read_fleet
from peermask.cli.imports import Import
from peermask.cli.interrupt import Interrupt
from peermask.errors import NodeError, NotYetError, PeermaskError

POLL = 0.2  # seconds between looks for a signal


def relay(
    fleet: FleetFile,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen, if not at the fleet's `relay` address.")
    ] = None,
    import_: Import = None,
) -> int:
    """Connect agents of a fleet that cannot dial each other.

    It runs until stopped, and can neither read nor forge what passes.
    """
    from peermask.node.address import split_address
    from peermask.node.credentials import find_relay, verifier
    from peermask.node.relay import open_relay
    from peermask.node.rosters import FleetFileWatch, check_signed
    from peermask.node.start import certificates_of

    held = read_fleet(fleet, import_)
    if held.relay is None:
        raise NodeError(
            f'{fleet} names no relay; add `relay = "host:port"`, and `relayed = true` to agents that need it'
        )
    credentials = find_relay(certificates_of(fleet, held))
    verify = verifier(credentials.ca)
    check_signed(held, verify)
    where = listen or held.relay
    with Interrupt() as interrupt:
        try:
            with open_relay(held, credentials, *split_address(where)) as opened:
                print(f"relay at {where} (Ctrl-C ends it)", flush=True)
                file = FleetFileWatch(fleet, held, verify)
                while not interrupt.requested():
                    time.sleep(POLL)
                    try:
                        later = file.look()
                    except PeermaskError as error:
                        print(f"peermask: {error}", file=sys.stderr, flush=True)
                        continue
                    if later is not None:
                        opened.follow(later)
                        print(f"roster {later.serial}: {len(later.agents)} agents", flush=True)
        except OSError as error:
            raise NotYetError(f"cannot listen on {where}: {error.strerror or error}") from None
    return interrupt.exit_code
