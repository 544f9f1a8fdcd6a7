"""Define the command ``serve``, which serves sources as plain zarr over HTTP."""

from __future__ import annotations

import socket
import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import PurePosixPath
from urllib.parse import quote

import refshard_fs
from refshard_fs.cli.command import argument, command, get_opening_options, parse_positive, print_line

MAX_PORT = 65_535
CACHED = 64 << 20  # bytes of chunks in memory: several clients often read the same chunks


def _parse_port(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise ArgumentTypeError(f"expected a number from 0 to {MAX_PORT}, got {text!r}")
    return int(text)


@command(
    "cube.refshard --port 8000",
    argument("--host", "address to listen on (%(default)s)", "ADDRESS", default="127.0.0.1"),
    argument("--port", "port to listen on; 0: any that is free (%(default)s)", "N", type=_parse_port, default=8000),
    argument("--token", "the bearer token that requests must have (Authorization: Bearer TEXT)", "TEXT"),
    argument("--redirect", "redirect requests for chunks that are whole objects on public web servers to the objects"),
    argument("--max-age", "seconds that clients may keep chunks (%(default)s)", "N", type=int, default=3600),
    argument("--max-requests", "connections open at a time; requests on others get status 503 (%(default)s)", "N",
             type=parse_positive, default=256),
    argument("--max-rate", "bytes a second that are sent to all clients together", "N", type=parse_positive),
    sources=("SOURCE...",),
)  # fmt: skip
def _serve(arguments: Namespace) -> None:
    """Serve sources as zarr over HTTP, on this machine alone by default."""
    try:
        import uvicorn
    except ImportError as e:
        raise ImportError(f'serving needs {e.name}: pip install "refshard_fs[serve]"') from e
    options = get_opening_options(arguments, block_cache=CACHED)
    opened = [refshard_fs.RefShardFileSystem(fo, **options) for fo in arguments.sources]
    names = [PurePosixPath(fo.rstrip("/").partition("?")[0]).stem for fo in arguments.sources]
    if len(set(names)) < len(names):
        raise ValueError(
            f"expected sources with different names, because the names begin their URLs: {', '.join(names)}. Serve the "
            "others on another port"
        )
    served = opened[0] if len(opened) == 1 else dict(zip(names, opened, strict=True))
    app = refshard_fs.asgi(
        served,
        token=arguments.token,
        redirect=arguments.redirect,
        max_age=arguments.max_age,
        bytes_per_second=arguments.max_rate,
    )
    config = uvicorn.Config(app, limit_concurrency=arguments.max_requests, lifespan="off")
    with _listen(arguments.host, arguments.port) as listening:
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        root = f"http://{host}:{listening.getsockname()[1]}/"
        for source, name in zip(arguments.sources, names, strict=True):
            print_line(f"serving {source} on {root}{quote(name) + '/' if len(names) > 1 else ''}")
        sys.stdout.flush()
        uvicorn.Server(config).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to ``host`` and ``port``, for a server to listen on.

    Its protocol is TCP, not 0: otherwise asyncio delays small packets.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as e:
        raise OSError(
            e.errno, f"cannot listen on {host!r}: expected an address of this machine for --host: {e.strerror}"
        ) from e
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as e:
        listening.close()
        raise OSError(
            e.errno, f"cannot listen on port {port} of {host}: {e.strerror}: choose another --port or --host"
        ) from e
    return listening


COMMANDS = (_serve,)
