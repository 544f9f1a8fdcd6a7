"""Recognise JPEG 2000 images: JP2 files and bare code streams. Tiles become chunks, resolution levels a pyramid.

A SAFE folder of Sentinel-2 is a separate format: the images that its manifest lists become arrays.
"""

from __future__ import annotations

from refshard_fs.core.format import Format, begins_with

SIGNATURE = b"\0\0\0\x0cjP  \r\n\x87\n"  # the first box of a JP2 file
CODE_STREAM = b"\xff\x4f\xff\x51"  # the first markers of a code stream

FORMAT = Format("jp2", begins_with(SIGNATURE, CODE_STREAM), "refshard_fs.formats.jp2.source")

MANIFEST = "manifest.safe"
SAFE = Format("safe", lambda probe: MANIFEST in probe.names, "refshard_fs.formats.jp2.safe", markers=(MANIFEST,))
