"""Free ports on 127.0.0.1, for servers that must be told theirs. Others bind port 0 and need none of this."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["free_ports"]


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on. Someone may take one before you do: be ready to start again."""
    with contextlib.ExitStack() as stack:
        # All held at once, or the system may give the same one twice.
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [sock.getsockname()[1] for sock in held]
