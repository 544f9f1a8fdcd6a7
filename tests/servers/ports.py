"""Free ports on 127.0.0.1, for servers that need a port number. Others bind port 0."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

__all__ = ["free_ports"]

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# The system gives the ports from here up to connections and to servers that bind port 0: thousands in a run of the
# tests, any of which may be the one that was free a moment ago.
FIRST_EPHEMERAL = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
_FIRST = 1_024 if FIRST_EPHEMERAL <= 10_000 else 10_000
# Hypothesis seeds the usual one, and processes that test side by side would draw the same ports.
_RANDOM = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on. Someone may take one before you do: be ready to start again."""
    with contextlib.ExitStack() as stack:
        # All held at once, or one may be drawn twice.
        held: list[socket.socket] = []
        for port in _RANDOM.sample(range(_FIRST, FIRST_EPHEMERAL), FIRST_EPHEMERAL - _FIRST):
            if len(held) == count:
                break
            with contextlib.suppress(OSError):
                held.append(stack.enter_context(socket.create_server(("127.0.0.1", port))))
        if len(held) < count:
            raise OSError(f"of the ports {_FIRST} to {FIRST_EPHEMERAL - 1}, {len(held)} are free, not {count}")
        return [sock.getsockname()[1] for sock in held]
