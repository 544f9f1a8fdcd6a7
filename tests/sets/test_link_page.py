"""Members of a folder, as pages of links name them."""

from __future__ import annotations

import pytest

from refshard_fs.sets.link_page import parse_link_page

# As Apache's mod_autoindex writes it, with a table ("fancy").
APACHE = b"""<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN">
<html><head><title>Index of /sst</title></head><body><h1>Index of /sst</h1><table>
<tr><th><a href="?C=N;O=D">Name</a></th><th><a href="?C=S;O=A">Size</a></th></tr>
<tr><td><a href="/">Parent Directory</a></td></tr>
<tr><td><a href="2024/">2024/</a></td></tr>
<tr><td><a href="a%20b.nc">a b.nc</a></td><td>4K</td></tr>
<tr><td><A class=f HREF='c&amp;d.nc'>c&amp;d.nc</A> <a href=e.nc>e.nc</a></td></tr></table></body></html>"""


def list_names(page: bytes, folder: str = "https://host/sst/") -> list[tuple[str, bool]] | None:
    found = parse_link_page(page, folder)
    return None if found is None else [(listed.name, listed.is_directory) for listed in found]


def test_page_of_apache_lists_files_and_folders() -> None:
    assert list_names(APACHE) == [("2024", True), ("a%20b.nc", False), ("c&d.nc", False), ("e.nc", False)]


@pytest.mark.parametrize(
    "link",
    [
        *("../", "..", ".", "./", "/", "%2e%2e/", "../other/a.nc", "sub/a.nc", "/a.nc", "#top", "?a.nc", "a.nc?sort=1"),
        *(
            "https://evil/sst/a.nc",
            "//evil/sst/a.nc",
            "http://host/sst/a.nc",
            "file:///etc/a.nc",
            "javascript:a",
            "http://[/",
        ),
    ],
)
def test_links_that_name_no_member_are_left_out(link: str) -> None:
    assert list_names(f'<a href="{link}">a</a>'.encode()) == []


@pytest.mark.parametrize("link", ["a.nc", "./a.nc", "/sst/a.nc", "https://host/sst/a.nc", "//host/sst/a.nc", " a.nc "])
def test_link_to_a_member_gives_its_name_in_several_spellings(link: str) -> None:
    assert list_names(f'<a href="{link}">a</a><a  title="x" href="{link}">again</a>'.encode()) == [("a.nc", False)]


@pytest.mark.parametrize("page", [b"", b'{"names": ["a.nc"]}', b"CDF\1"])
def test_document_other_than_html_is_not_a_page(page: bytes) -> None:
    assert parse_link_page(page, "https://host/sst/") is None
