"""Make a TLS certificate for loopback, and a relay that adds a round-trip time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import trustme

__all__ = ["certificate", "far_away"]


def certificate(folder: Path, *names: str) -> tuple[ssl.SSLContext, str]:
    """Return the TLS context of a server with a certificate for ``names``, and the file of its authority."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return context, str(folder / "ca.pem")


@contextlib.asynccontextmanager
async def far_away(port: int, round_trip: float) -> AsyncIterator[tuple[int, list[str]]]:
    """Relay connections to the local ``port``, and delay their bytes so that a round trip takes ``round_trip`` seconds.

    Yield the relay's port, which is the same on 127.0.0.1 to 127.0.0.3, and a list to which the address of each
    connection is added.
    """
    connected: list[str] = []
    writers: list[asyncio.StreamWriter] = []
    loop = asyncio.get_running_loop()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            loop.call_later(round_trip / 2, writer.write, data)
        loop.call_later(round_trip / 2, writer.close)

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer.get_extra_info("sockname")[0])
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writers.extend([writer, back])
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(copy(reader, back), copy(there, writer))

    first = await asyncio.start_server(relay, "127.0.0.1", 0)
    number = first.sockets[0].getsockname()[1]
    others = [await asyncio.start_server(relay, f"127.0.0.{i}", number) for i in (2, 3)]
    try:
        yield number, connected
    finally:
        for server in (first, *others):
            server.close()
        for writer in writers:
            writer.close()
        await asyncio.sleep(round_trip)
