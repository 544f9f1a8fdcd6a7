"""HTTP connections that never lead into private networks, whatever a name resolves to at that moment."""

from __future__ import annotations

import socket
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from refshard_fs.admission import is_private
from refshard_fs.errors import TargetNotAllowed

__all__ = ["PublicResolver", "public_client", "public_connector"]


class PublicResolver(AbstractResolver):
    """Resolves names as the system does, and refuses those of private addresses, but for the hosts in ``exempt``."""

    def __init__(self, exempt: frozenset[str]) -> None:
        self._exempt = exempt
        self._resolver = aiohttp.DefaultResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if host.lower().rstrip(".") not in self._exempt:
            private = [place["host"] for place in found if is_private(place["host"].partition("%")[0])]
            if private:
                rule = f"a manifest from elsewhere may not point into private networks, and {host} is {private[0]}"
                raise TargetNotAllowed(f"//{host}:{port}/", rule, f"Add 'https://{host}/' to allow= if you trust it")
        return found

    async def close(self) -> None:
        await self._resolver.close()


def public_connector(exempt: frozenset[str]) -> aiohttp.TCPConnector:
    """Return a connector that leads to public addresses only, and to the hosts in ``exempt``."""
    return aiohttp.TCPConnector(resolver=PublicResolver(exempt))


async def public_client(exempt: frozenset[str], **options: Any) -> aiohttp.ClientSession:
    """Return a session on such a connector: `HTTPFileSystem`'s ``get_client``."""
    return aiohttp.ClientSession(**{**options, "connector": public_connector(exempt)})
