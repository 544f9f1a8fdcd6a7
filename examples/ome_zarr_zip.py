"""Read a sharded OME-Zarr image in a ZIP file over HTTP, only by the inner chunks that a view needs.

zarr writes a real image (the MRI slice that matplotlib ships) as an OME-Zarr 0.5 pyramid with sharded arrays into a ZIP
without compression. The ZIP is served on loopback. The members of the archive, their shards and the inner chunks in the
shards are all byte ranges of the ZIP. So nothing is unpacked, and a view reads only the chunks that it shows.

    python examples/ome_zarr_zip.py [--plot ome_zarr_zip.png]
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from _server import serve
from matplotlib.cbook import get_sample_data
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from zarr.storage import ZipStore

LEVELS = 3
INNER, SHARD = (16, 16), (64, 64)
VIEW = slice(80, 144), slice(96, 160)


def main() -> None:
    """Write and serve the image, read an overview and a detail, and check and plot them."""
    parser = argparse.ArgumentParser(description="A sharded OME-Zarr ZIP, read over HTTP.")
    parser.add_argument("--plot", type=Path, default=Path("ome_zarr_zip.png"), help="where to save the plot")
    plot_file: Path = parser.parse_args().plot

    image = load_image()
    with tempfile.TemporaryDirectory() as name, serve(Path(name)) as server:
        write(image, Path(name) / "mri.ome.zarr.zip")

        # With the defaults, a file as small as this one would be read nearly whole by one request.
        options = {"fo": f"{server.url}/mri.ome.zarr.zip", "max_gap": 512, "readahead": 0}
        group = zarr.open_group("refshard://", mode="r", storage_options=options)
        multiscale: dict[str, Any] = group.attrs["ome"]["multiscales"][0]
        print(f"{multiscale['name']}: {len(multiscale['datasets'])} levels")
        full, coarse = (group[multiscale["datasets"][number]["path"]] for number in (0, -1))
        print(f"full resolution {full.shape}, chunks {full.chunks}")  # inner chunks: shards are not shown

        server.reset_counters()
        overview = coarse[...]
        print(f"overview {overview.shape}: requests {server.requests.total()}, bytes {server.bytes.total():,}")

        server.reset_counters()
        detail = full[VIEW]
        print(f"detail {detail.shape}: requests {server.requests.total()}, bytes {server.bytes.total():,}")

        np.testing.assert_array_equal(detail, image[VIEW])
        np.testing.assert_array_equal(full[...], image)
        size = (Path(name) / "mri.ome.zarr.zip").stat().st_size
        print(f"every pixel equals that of the image; the file has {size:,} bytes")

    plot(overview, detail, plot_file)
    print(f"plot: {plot_file}")


def load_image() -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Return matplotlib's sample: a slice through a head, 256 by 256 pixels."""
    with get_sample_data("s1045.ima.gz", asfileobj=True) as file:
        data = file.read()
    if data.startswith(b"\x1f\x8b"):  # some versions of matplotlib decompress it, others do not
        data = gzip.decompress(data)
    return np.frombuffer(data, np.uint16).reshape(256, 256)


def write(image: np.ndarray[Any, np.dtype[np.uint16]], file: Path) -> None:
    """Write ``image`` as a pyramid of sharded arrays into one ZIP file."""
    scales = [{"type": "scale", "scale": [2**number, 2**number]} for number in range(LEVELS)]
    multiscale = {
        "name": "MRI slice",
        "axes": [{"name": name, "type": "space"} for name in "yx"],
        "datasets": [{"path": f"s{n}", "coordinateTransformations": [scale]} for n, scale in enumerate(scales)],
    }
    store = ZipStore(file, mode="w")  # it writes each member only once, so attributes are passed with the group
    group = zarr.create_group(store, attributes={"ome": {"version": "0.5", "multiscales": [multiscale]}})
    level = image
    for number in range(LEVELS):
        group.create_array(f"s{number}", data=level, chunks=INNER, shards=SHARD, dimension_names=("y", "x"))
        level = level.reshape(level.shape[0] // 2, 2, level.shape[1] // 2, 2).mean((1, 3)).astype(level.dtype)
    store.close()


def plot(overview: np.ndarray[Any, Any], detail: np.ndarray[Any, Any], file: Path) -> None:
    """Plot the overview, with a frame around the detail, and the detail."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows, columns = VIEW
    left.imshow(overview, cmap="gray", extent=(0, 256, 256, 0))
    left.add_patch(
        Rectangle(
            (columns.start, rows.start),
            columns.stop - columns.start,
            rows.stop - rows.start,
            fill=False,
            edgecolor="tab:orange",
        )
    )
    left.set(title="Coarsest level, and the view", xlabel="pixel", ylabel="pixel")
    right.imshow(detail, cmap="gray", extent=(columns.start, columns.stop, rows.stop, rows.start))
    right.set(title="The view at full resolution", xlabel="pixel")
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main()
