"""Time and memory to the first batch of a data set of 3e8 rows, compared with one of 1e4 rows.

    python benchmarks/rows.py [--rows 300000000] [--small 10000]

The table is simulated: it repeats one block of images, so that it has all rows with the disk space and memory
of one block. Each size has its own process, which opens the table, makes the split, its fingerprint and label
check and a random part of it, and loads the first batch. Opening the table is timed separately: this is the
time of `datasets`, which grows with the number of blocks, as with a table on disk.
"""

import argparse
import io
import json
import resource
import subprocess
import sys
import time

import datasets
import numpy as np
import pyarrow as pa
from PIL import Image

from vitcli.data import loader
from vitcli.data.columns import from_table
from vitcli.data.sampler import TrainSampler
from vitcli.data.split import check_labels
from vitcli.data.transforms import TrainTransform

BATCH = 64
ROWS_PER_BLOCK = 10_000


def simulated(num_rows: int) -> datasets.Dataset:
    rng = np.random.default_rng(0)
    rows = []
    for row in range(ROWS_PER_BLOCK):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file, "JPEG")
        rows.append({"image": {"bytes": file.getvalue(), "path": None}, "label": row % 10})
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(num_classes=10)})
    block = pa.Table.from_pylist(rows, schema=features.arrow_schema)
    table = pa.concat_tables([block] * (num_rows // ROWS_PER_BLOCK))
    info = datasets.DatasetInfo(features=features)
    # Without a fingerprint `datasets` would hash every row of a table in memory.
    return datasets.Dataset(datasets.table.InMemoryTable(table), info, fingerprint=f"{num_rows} rows")


def measure(num_rows: int) -> dict[str, float]:
    began_at = time.perf_counter()
    table = simulated(num_rows)
    opened_at = time.perf_counter()
    opened_mb = _peak_mb()
    whole = from_table(table, name=f"{num_rows} rows", root=None, image_column=None, label_column=None)
    check_labels(whole)
    split = whole.part(0, num_rows * 9 // 10, name="nine tenths", shuffle_key=1)
    assert len(split.fingerprint) == 32
    transform = TrainTransform(
        (32, 32), "inception", (0.05, 1.0), (0.75, 4 / 3), None, True, "bilinear", True, None
    )
    batches = loader.train_batches(
        split, transform, TrainSampler(len(split), split.block_starts, 8192, BATCH, 0, 0, 1),
        steps=range(10**6, 10**6 + 1), per_device_batch=BATCH, on_bad_image="error", num_threads=2,
    )  # fmt: skip
    batch = next(iter(batches))
    assert len(set(batch.rows_B.tolist())) == BATCH
    return {
        "rows": len(whole),
        "open_s": opened_at - began_at,
        "first_batch_s": time.perf_counter() - opened_at,
        "opened_mb": opened_mb,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=300_000_000)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    small, large = (
        json.loads(subprocess.check_output([sys.executable, __file__, "--one", str(rows)]))
        for rows in (options.small, options.rows)
    )
    for measured in (small, large):
        print("  ".join(f"{name} {value:,.2f}" for name, value in measured.items()))
    seconds = sum(large[part] - small[part] for part in ("open_s", "first_batch_s"))
    print(f"{seconds:+.2f} s to the first batch, {large['peak_mb'] - small['peak_mb']:+.0f} MB at the peak")


if __name__ == "__main__":
    main()
