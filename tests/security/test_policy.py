"""Paths, servers and prefixes of URLs are recognised in many spellings."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refshard_fs import RefShardError, RefShardFileSystem, TargetNotAllowed
from refshard_fs.security.policy import find_common_server, find_longest_prefix, leads_out, server_of
from tests.servers.http import RangeServer

SECRET = "HUSHHUSH"


CLIMBING = [
    "/a/../b/x", "/a/./../b/x", "/a/%2e%2e/b/x", "/a/.%2E/b/x", "/a/..%2fb/x", "/a/%2e%2e%2fb/x", "/a/%2e%2e%5cb/x",
    "/a/..\\b/x", "/a/..;/b/x", "/a/..;v=1/b/x", "/a/%252e%252e%252fb/x", "/a/%25252e%25252e/b/x", "/a/x%2f..%2f..%2fb",
]  # fmt: skip


@pytest.mark.parametrize("path", CLIMBING)
@pytest.mark.case(id="P34")
def test_path_with_double_dots_matches_only_its_server(path: str, http_server: RangeServer) -> None:
    assert leads_out(f"https://h{path}")
    assert find_longest_prefix({"https://h/a/": 1}, f"https://h{path}") is None
    assert find_longest_prefix({"https://h/a/": 1, "https://h/": 2}, f"https://h{path}") == ("https://h", 2)
    options = {f"{http_server.url}/a/": {"headers": {"Authorization": SECRET}}}
    refs = {"k": [http_server.url + path, 0, 1]}
    with contextlib.suppress(RefShardError, FileNotFoundError):
        RefShardFileSystem(refs, retries=0, options=options).cat_file("k")
    assert SECRET not in repr([request.headers for request in http_server.requests()])
    http_server.clear()
    with pytest.raises(TargetNotAllowed):
        RefShardFileSystem(refs, allow=[f"{http_server.url}/a/"]).cat_file("k")
    assert http_server.requests() == []


@pytest.mark.parametrize(
    "path", ["/a/x", "/a/..x", "/a/x..", "/a/.../x", "/a/%20x", "/a/x%2fy", "/a/v1.0/x", "/a/x?q=../y"]
)
def test_plain_paths_match_their_prefix(path: str) -> None:
    assert not leads_out(f"https://h{path}")
    assert find_longest_prefix({"https://h/a/": 1}, f"https://h{path}") == ("https://h/a", 1)


PARTS = st.lists(st.sampled_from(["s3://", "s3:", "file://", "/", "a", "b", "a/b", "https://h", "::"]), max_size=5)


@given(st.lists(PARTS.map("".join), max_size=6), PARTS.map("".join))
def test_longest_prefix_equals_a_full_scan(prefixes: list[str], url: str) -> None:
    table = {prefix: number for number, prefix in enumerate(prefixes)}
    stems = [(prefix if prefix.endswith("://") else prefix.rstrip("/"), value) for prefix, value in table.items()]
    fitting = [
        (stem, value)
        for stem, value in stems
        if url == stem or url.startswith(stem if stem.endswith("://") else stem + "/")
    ]
    assert find_longest_prefix(table, url) == max(fitting, key=lambda found: len(found[0]), default=None)


@given(st.text(alphabet="./%2eEfF5cC;\\ab", max_size=24))
def test_encoded_double_dots_are_recognised(path: str) -> None:
    from urllib.parse import unquote

    decoded = unquote(unquote(path)).replace("\\", "/")
    if any(step.partition(";")[0] == ".." for step in decoded.split("/")):
        assert leads_out(f"https://h/{path}")


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://h:8/a/b?c", "https://h:8"), ("https://h", "https://h"), ("s3://b/k", "s3://b"), ("/a/b", "/a/b"),
        ("zip://a::https://h/x.zip", "zip://a::https://h/x.zip"), ("http://[::1]:9/x", "http://[::1]:9"),
    ],
)  # fmt: skip
def test_server_is_parsed_from_a_url(url: str, server: str) -> None:
    assert server_of(url) == server


@pytest.mark.parametrize(
    ("urls", "server"),
    [
        (["s3://b/x", "s3://b/y/z"], "s3://b/"),
        (["http://h:80/x"], "http://h:80/"),
        (["s3://b/x\ns3://b/y", "x"], None),
        (["s3://b/x", "s3://bc/x"], None),
        (["s3://b/x", None], None),
        (["s3://b/x", "y"], None),
        (["zip://b/x::s3://c/y"], None),
        (["s3://b"], None),
        (["/b/x"], None),
        ([None], None),
        ([], None),
    ],
)
def test_common_server_of_urls_is_found(urls: list[str | None], server: str | None) -> None:
    assert find_common_server(urls) == server
