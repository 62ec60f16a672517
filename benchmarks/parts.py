"""Memory of `vit embed --part-rows` by the number of rows: it should not depend on it.

    python benchmarks/parts.py FOLDER [--rows 100000 1000000] [--part-rows 50000]

FOLDER gets a Parquet file for each number of rows, of PNG images of 16 x 16 pixels, and a small
network, so that what is measured is the data path. Own memory is the largest resident size without
pages of files, which the system takes back where it needs them (Linux).
"""

import argparse
import io
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROWS_AT_ONCE = 50_000
DISTINCT = 1_000


def write_images(path: Path, num_rows: int) -> None:
    """Write a Parquet file of images, of which a thousand are distinct, and their labels."""
    draw, images = np.random.default_rng(0), []
    for _ in range(DISTINCT):
        file = io.BytesIO()
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(file, "PNG")
        images.append({"bytes": file.getvalue(), "path": None})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, num_rows, ROWS_AT_ONCE):
            rows = range(first, min(first + ROWS_AT_ONCE, num_rows))
            columns = [
                pa.array([images[row % DISTINCT] for row in rows], kind),
                pa.array([row % 10 for row in rows]),
            ]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=1_000)


def write_network(folder: Path) -> None:
    """Write a small network for images of 16 x 16 pixels."""
    from vitcli.data.transforms import Preprocessing
    from vitcli.models.build import architecture, build
    from vitcli.weights.describe import WeightsInfo
    from vitcli.weights.io import write_weights

    arch = architecture("ViT-demo/8", image_size=(16, 16), num_classes=10)
    pixels = Preprocessing((16, 16), "none", 1.0, "bilinear", False, (0.5,) * 3, (0.5,) * 3)
    described = {"preprocessing": pixels.as_dict(), "class_names": None, "metadata": {}}
    write_weights(folder, build(arch, dropout=0.0).state_dict(), WeightsInfo(arch, **described))


def own_kib(pid: int) -> int:
    """Return the resident memory of a process that is no page of a file; 0 of one that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--part-rows", type=int, default=50_000)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    write_network(options.folder)
    weights = options.folder / "model.safetensors"
    names = ("rows", "files", "seconds", "images/s", "own memory, MiB", "bytes a row")
    print(f"| {' | '.join(names)} |\n{'|---' * len(names)}|")
    for num_rows in options.rows:
        data, out = options.folder / f"rows-{num_rows}", options.folder / f"features-{num_rows}"
        shutil.rmtree(out, ignore_errors=True)
        data.mkdir(exist_ok=True)
        if not (data / "train.parquet").exists():
            write_images(data / "train.parquet", num_rows)
        words = [sys.executable, "-m", "vitcli", "embed", "--ckpt", weights, "--dataset", data]
        words += [
            "--split",
            "train",
            "--out",
            out,
            "--part-rows",
            options.part_rows,
            "--batch-size",
            512,
            "--quiet",
        ]
        began_at = time.perf_counter()
        process = subprocess.Popen(list(map(str, words)), stdout=subprocess.DEVNULL)
        peak_kib = 0
        while process.poll() is None:
            peak_kib = max(peak_kib, own_kib(process.pid))
            time.sleep(0.1)
        if process.returncode:
            raise SystemExit(f"{words} ended with {process.returncode}")
        seconds = time.perf_counter() - began_at
        sizes = [file.stat().st_size for file in (out / "parts").iterdir()]
        cells = [f"{num_rows:,}", len(sizes), f"{seconds:.0f}", f"{num_rows / seconds:,.0f}"]
        cells += [f"{peak_kib / 1024:,.0f}", f"{sum(sizes) / num_rows:.0f}"]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
