"""Find free ports on 127.0.0.1, for servers that need a port number. Other servers bind port 0."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

__all__ = ["free_ports"]

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# From this port on, the system assigns ports to connections and to servers that bind port 0, thousands in a run of the
# tests. So a port in that range may be taken a moment after it was free.
FIRST_EPHEMERAL = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
_FIRST = 1_024 if FIRST_EPHEMERAL <= 10_000 else 10_000
# Hypothesis seeds the module's generator, so that test processes side by side would draw the same ports from it.
_RANDOM = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Return different ports on which nothing listens. Another process may take one of them: be ready to retry."""
    with contextlib.ExitStack() as stack:
        # Keep all of them bound until the end, so that none is drawn twice.
        held: list[socket.socket] = []
        for port in _RANDOM.sample(range(_FIRST, FIRST_EPHEMERAL), FIRST_EPHEMERAL - _FIRST):
            if len(held) == count:
                break
            with contextlib.suppress(OSError):
                held.append(stack.enter_context(socket.create_server(("127.0.0.1", port))))
        if len(held) < count:
            ports = f"{_FIRST} to {FIRST_EPHEMERAL - 1}"
            raise OSError(f"expected {count} free ports from {ports}, found {len(held)}")
        return [sock.getsockname()[1] for sock in held]
