"""Neuroglancer's info documents, and the folder of samples of volumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.volumes import KEY, make_pattern

VALUES = make_pattern((11, 9, 5, 2))


def make_info(**changes: Any) -> dict[str, Any]:
    scale = {"key": KEY, "size": [8, 8, 8], "chunk_sizes": [[4, 4, 4]], "encoding": "raw", "resolution": [1, 1, 1]}
    return {"type": "image", "data_type": "uint8", "num_channels": 1, "scales": [{**scale, **changes}]}


SAMPLES = Path(__file__).parents[1] / "data" / "neuroglancer"
