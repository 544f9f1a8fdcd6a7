"""A source as plain zarr over HTTP, for any client: `asgi` makes an application, which ``refshard serve`` runs.

Keys are objects with ETags, ranges and conditional requests (RFC 9110); metadata are consolidated, and compressed for
clients that take gzip. Nothing is listed: a client has to know a key, which the metadata tell.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import html
import json
import re
import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from refshard_fs.core import zarrmeta
from refshard_fs.core.keys import parent
from refshard_fs.core.model import Span
from refshard_fs.core.zarrmeta import CONSOLIDATED
from refshard_fs.errors import ReferenceNotReachable, RefShardError, TargetNotAllowed, redact
from refshard_fs.fs import RefShardFileSystem
from refshard_fs.security.admission import WEB, is_private
from refshard_fs.security.policy import protocol_of

MAX_AGE: Final = 3600  # seconds that clients may keep chunks; metadata are asked for again after a minute
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")
_SMALL: Final = 256  # bytes of metadata that are not worth compressing


def asgi(
    source: Any,
    *,
    token: str | None = None,
    redirect: bool = False,
    max_age: int = MAX_AGE,
    bytes_per_second: float | None = None,
    **options: Any,
) -> Starlette:
    """Return an ASGI application that serves a source as a zarr store: for uvicorn, or to be mounted in another one.

    Parameters
    ----------
    source:
        What `RefShardFileSystem` takes as ``fo``, or such a filesystem; or a mapping of names to these, each of which
        is served below its name.
    token:
        What a request has to bring, as ``Authorization: Bearer TOKEN``; by default nothing.
    redirect:
        Whether a chunk that is a whole object on a public web server is answered with its own URL (status 307).
    max_age:
        Seconds that clients may keep chunks.
    bytes_per_second:
        Most that is sent, to all clients together; by default any number.
    options:
        Further arguments of `RefShardFileSystem`: ``max_memory=`` bounds what reading takes.

    Raises
    ------
    RefShardError
        If a source cannot be opened.

    Examples
    --------
    >>> import asyncio, httpx, json, refshard_fs
    >>> meta = {"zarr_format": 2, "shape": [3], "chunks": [3], "dtype": "|u1", "order": "C",
    ...         "fill_value": None, "filters": None, "compressor": None}
    >>> refs = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(meta), "a/0": "abc"}
    >>> async def get(key):
    ...     transport = httpx.ASGITransport(refshard_fs.asgi(refs))
    ...     async with httpx.AsyncClient(transport=transport, base_url="http://served") as client:
    ...         return await client.get(key)
    >>> asyncio.run(get("/a/0")).content, asyncio.run(get("/a/1")).status_code
    (b'abc', 404)

    """
    sources = source if _are_named(source) else {"": source}
    pace = _Pace(bytes_per_second)
    routes: list[Route | Mount] = []
    for name, fo in sources.items():
        fs = fo if isinstance(fo, RefShardFileSystem) else RefShardFileSystem(fo, **options)
        served = _Served(fs, token, max_age, pace, redirects=redirect)
        own = [Route("/", served.page), Route("/{key:path}", served.key)]
        routes += own if not name else [Mount(f"/{name}", routes=own)]
    if "" not in sources:
        links = "".join(f'<li><a href="{html.escape(name)}/">{html.escape(name)}</a></li>' for name in sources)
        routes.append(Route("/", _page_of("Sources", f"<ul>{links}</ul>", token)))
    cors = Middleware(
        CORSMiddleware,
        allow_origins=["*"],
        allow_methods=["GET", "HEAD"],
        allow_headers=["Authorization", "Range", "If-None-Match"],
        expose_headers=["Content-Length", "Content-Range", "ETag"],
    )
    return Starlette(routes=routes, middleware=[cors])


def _are_named(source: Any) -> bool:
    """Whether ``source`` is a mapping of names to sources, and not a set of references."""
    return isinstance(source, Mapping) and all(isinstance(fo, RefShardFileSystem) for fo in source.values())


class _Pace:
    """Lets no more than so many bytes a second pass."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def wait_for(self, size: int) -> None:
        if self._rate is None:
            return
        now = time.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + size / self._rate
        await asyncio.sleep(start - now)


class _Range(NamedTuple):
    start: int
    stop: int

    @classmethod
    def of(cls, header: str | None, size: int) -> _Range | None:
        """Return the one range that a request asks for, of ``size`` bytes; None for all of them.

        HTTPException (416) for one outside. Several ranges, and other units, are answered with everything.
        """
        match = None if header is None else _RANGE.fullmatch(header.strip())
        if match is None or match.groups() == ("", ""):
            return None
        first, last = match.groups()
        start = max(size - int(last), 0) if not first else int(first)
        stop = size if not first or not last else min(int(last) + 1, size)
        if start >= size or start >= stop:
            raise HTTPException(416, headers={"Content-Range": f"bytes */{size}"})
        return cls(start, stop)


class _Served:
    """One source as HTTP."""

    def __init__(
        self, fs: RefShardFileSystem, token: str | None, max_age: int, pace: _Pace, *, redirects: bool
    ) -> None:
        self._fs, self._token, self._max_age, self._pace, self._redirects = fs, token, max_age, pace, redirects
        keyspace = fs.source.open()
        documents = fs.source.run("", partial(keyspace.documents, ""))
        self._consolidated = consolidate(documents)
        self._arrays = [path for key in documents for path, name in (parent(key),) if _is_array(documents[key], name)]
        self._title = fs.fo.rstrip("/").rpartition("/")[2].partition("?")[0] if isinstance(fs.fo, str) else "A source"

    async def page(self, request: Request) -> Response:
        """Answer with a page about the source; with ``?map=ARRAY``, a picture of where the array's bytes lie."""
        _check_token(request, self._token)
        array = request.query_params.get("map")
        if array is not None:
            if array not in self._arrays:
                raise HTTPException(404)
            picture = await asyncio.to_thread(self._fs.visualize, array)
            return Response(picture._repr_svg_(), media_type="image/svg+xml")
        maps = "".join(f'<li><a href="?map={quote(path)}">{html.escape(path)}</a></li>' for path in self._arrays)
        found = await asyncio.to_thread(self._fs._repr_html_)
        url = html.escape(str(request.url.replace(query="")))
        lines = {
            "xarray": f'xr.open_dataset("{url}", engine="zarr", chunks={{}})',
            "zarr": f'zarr.open_group("{url}", mode="r")',
            "JavaScript": f'zarr.open(new zarr.FetchStore("{url}"))',
            "GDAL": f"gdalinfo 'ZARR:\"/vsicurl/{url}\"'",
        }
        code = "".join(f"<dt>{name}</dt><dd><code>{text}</code></dd>" for name, text in lines.items())
        return HTMLResponse(
            _document(self._title, f"{found}<h2>Read it</h2><dl>{code}</dl><h2>Maps</h2><ul>{maps}</ul>")
        )

    async def key(self, request: Request) -> Response:
        """Answer with a key's bytes."""
        _check_token(request, self._token)
        key = request.path_params["key"]
        is_metadata = zarrmeta.is_metadata(key)
        data = self._consolidated.get(key)
        if data is None:
            if self._redirects and not is_metadata and (url := await self._public_url(key)) is not None:
                return RedirectResponse(url, 307)
            data = await self._read(key)
        etag = f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"'
        headers = {
            "ETag": etag,
            "Accept-Ranges": "bytes",
            "Cache-Control": f"public, max-age={min(self._max_age, 60) if is_metadata else self._max_age}",
        }
        if etag in (request.headers.get("if-none-match") or ""):
            return Response(status_code=304, headers=headers)
        asked = None if request.headers.get("if-range", etag) != etag else request.headers.get("range")
        part = _Range.of(asked, len(data))
        if part is not None:
            headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(data)}"
            data = data[part.start : part.stop]
        elif is_metadata and len(data) > _SMALL and "gzip" in request.headers.get("accept-encoding", ""):
            data = gzip.compress(data, 6)
            headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding", "ETag": f"W/{etag}"}
        await self._pace.wait_for(len(data))
        kind = "application/json" if is_metadata else "application/octet-stream"
        return Response(data, 200 if part is None else 206, headers, kind)

    async def _read(self, key: str) -> bytes:
        try:
            return await self._fs._cat_file(key)
        except (FileNotFoundError, IsADirectoryError, ValueError) as e:
            if isinstance(e, RefShardError) and not isinstance(e, FileNotFoundError):
                raise HTTPException(502, redact(str(e))) from e
            raise HTTPException(404) from None
        except TargetNotAllowed as e:
            raise HTTPException(403, "the source refers to where it may not") from e
        except (RefShardError, ReferenceNotReachable, OSError) as e:
            raise HTTPException(502, redact(str(e))) from e

    async def _public_url(self, key: str) -> str | None:
        """Return the URL of a chunk that is a whole object on a public web server."""
        keyspace = await self._fs.source.keyspace()
        entry = await self._fs.source.look(key, keyspace.lookup(key))
        if not isinstance(entry, Span) or (entry.start, entry.stop) != (0, None) or protocol_of(entry.url) not in WEB:
            return None
        host = entry.url.partition("://")[2].partition("/")[0]
        is_open = not is_private(host.rpartition(":")[0] or host) and "@" not in host and "?" not in entry.url
        return entry.url if is_open and not self._fs.source.options.pool.options_of(entry.url) else None


def _check_token(request: Request, token: str | None) -> None:
    if token is None:
        return
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not secrets.compare_digest(given.encode(), token.encode()):
        raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})


def consolidate(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the root document, by key, that repeats all of ``documents``; nothing for a source that is one array."""
    if "zarr.json" in documents:
        root = json.loads(documents["zarr.json"])
        if root.get("node_type") != "group":
            return {}
        nodes = {parent(key)[0]: json.loads(data) for key, data in documents.items() if key.endswith("/zarr.json")}
        bare = {path: {n: v for n, v in node.items() if n != "consolidated_metadata"} for path, node in nodes.items()}
        root["consolidated_metadata"] = {"kind": "inline", "must_understand": False, "metadata": bare}
        return {"zarr.json": zarrmeta.dumps(root)}
    if ".zgroup" not in documents:
        return {}
    members = {key: json.loads(data) for key, data in documents.items() if parent(key)[1] != CONSOLIDATED}
    return {CONSOLIDATED: zarrmeta.dumps({"zarr_consolidated_format": 1, "metadata": members})}


def _is_array(document: bytes, name: str) -> bool:
    return name == ".zarray" or (name == "zarr.json" and json.loads(document).get("node_type") == "array")


def _page_of(title: str, body: str, token: str | None) -> Any:
    async def page(request: Request) -> Response:
        _check_token(request, token)
        return HTMLResponse(_document(title, body))

    return page


def _document(title: str, body: str) -> str:
    style = "body{font:16px sans-serif;margin:2em auto;max-width:60em}code{background:#eee;padding:.1em .3em}"
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{style}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body><h1>{html.escape(title)}</h1>{body}</body></html>"
