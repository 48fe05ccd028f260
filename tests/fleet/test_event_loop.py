"""A loop in a thread leaves no connection open."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

from peermask.fleet.sockets import Server, loop_in_thread, run_in

MORE_THAN_BUFFERS_HOLD = b"x" * 2**25


def test_connections_that_nobody_reads_are_aborted() -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(MORE_THAN_BUFFERS_HOLD)
        writer.close()  # which waits until all is sent

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with loop_in_thread("test") as loop:
            server = Server(serve)
            address = run_in(loop, server.open("127.0.0.1", 0, 2**16))
            with socket.create_connection(address, 60) as client:
                assert client.recv(1)
                late = socket.create_connection(address, 60)  # is just being accepted
                run_in(loop, server.close())
        late.close()
        gc.collect()
    assert not [str(one.message) for one in caught]
