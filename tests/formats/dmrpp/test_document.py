"""DMR++ documents are parsed; other XML, and documents that could expand in memory, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from refshard_fs import ManifestError
from tests.support.dmrpp_writer import make_document
from tests.support.shards_in_memory import ROOT, Files

xr = pytest.importorskip("xarray")
netcdf4 = pytest.importorskip("netCDF4")
h5py = pytest.importorskip("h5py")


def open_document(body: str, **targets: bytes) -> Any:
    files = Files({ROOT: make_document(body), **{f"files://{name}": data for name, data in targets.items()}})
    return files, files.open()


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'


OUTSIDE = '<!DOCTYPE x [<!ENTITY secret SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    "declaration", [BOMB, OUTSIDE, "<!DOCTYPE x>", '<!DOCTYPE x SYSTEM "http://127.0.0.1:1/x.dtd">']
)
@pytest.mark.case(id="P26")
def test_document_type_declarations_are_refused(declaration: str) -> None:
    data = make_document("<Attribute name='x' type='String'><Value>&b;&secret;</Value></Attribute>")
    start, _, end = data.partition(b"?>")
    files = Files({ROOT: start + b"?>" + declaration.encode() + end})
    with pytest.raises(ManifestError, match="document type declaration"):
        files.open()


def test_deeply_nested_elements_are_refused() -> None:
    with pytest.raises(ManifestError, match="expected at most 100 levels"):
        open_document("".join(f"<Group name='g{number}'>" for number in range(200)))


def test_malformed_xml_is_refused() -> None:
    with pytest.raises(ManifestError, match="expected a whole XML document"):
        open_document("<Int16")
