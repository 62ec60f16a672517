"""Very many rows in parts (--part-rows): a file for each, which any number of workers of a command share.

OUT/parts.json says what was asked; OUT/parts/FIRST.suffix holds the rows from FIRST on, whole or not at all.
No part knows another, so neither memory nor the cost of a kill depends on the number of rows.
"""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vitcli.data.split import Split
from vitcli.errors import Stopped
from vitcli.evaluation.inference import EvalSettings
from vitcli.output import text
from vitcli.output.atomic import read_json, write_json
from vitcli.output.leases import Cells
from vitcli.output.owned_folder import OwnedFolder, refuse_other
from vitcli.output.run_folder import PARTS, PARTS_FOLDER
from vitcli.output.shared_work import SharedWork, WorkCell

LOCK = ".vit-parts.lock"
MOST_NAMED = 100  # skipped images in a result


@dataclass(frozen=True)
class Parts:
    """How a split is divided, and what is done with each part.

    Attributes:
        out: folder of the parts.
        rows: of a part.
        asked: all that a file depends on besides its rows, as JSON.
        suffix: of the files.
        write: makes the file of a part of the split, whose first row it is given, on all processes.
        read: returns "num_examples" and "skipped_images" of a file; OSError or ValueError if it is missing or
            damaged.
    """

    out: Path
    rows: int
    asked: Mapping[str, Any]
    suffix: str
    write: Callable[[Split, int, Path], None]
    read: Callable[[Path], dict[str, Any]]

    def make(self, split: Split, settings: EvalSettings, *, overwrite: bool) -> dict[str, Any]:
        """Make the parts that no other worker makes; return the counts of all, also written to the index.

        Raises:
            VitError: the folder holds something else, or parts of another request.
            Stopped: by the user; the same command makes the parts that are left.
        """
        runtime = settings.runtime
        firsts = range(0, len(split), self.rows)
        files = {first: self.out / PARTS_FOLDER / f"{first:012}{self.suffix}" for first in firsts}
        names = [str(file.relative_to(self.out)) for file in files.values()]
        index = {"part_rows": self.rows, "num_rows": len(split), "asked": dict(self.asked), "parts": names}
        cells = [
            WorkCell(
                str(first),
                file,
                partial(self._make_part, split, first, file, settings),
                partial(self._finished, file),
            )
            for first, file in files.items()
        ]
        runtime.on_main(partial(self._join, index, overwrite=overwrite))
        try:
            each = SharedWork(cells, self.out, runtime, settings.progress, noun="part").run()
        except KeyboardInterrupt:
            message = "stopped; the same command makes the parts that are left"
            raise Stopped(signal.SIGINT, message) from None
        skipped = [name for part in each for name in part["skipped_images"]]
        counts = {"num_examples": sum(part["num_examples"] for part in each), "num_parts": len(files)}
        counts |= {"num_skipped_images": len(skipped), "skipped_images": skipped[:MOST_NAMED]}

        def end() -> None:
            write_json(self.out / PARTS, index | counts)
            Cells(self.out).end()

        runtime.on_main(end)
        return {"out": str(self.out), "part_rows": self.rows, **counts}

    def _join(self, index: dict[str, Any], *, overwrite: bool) -> None:
        """Open the folder beside other workers."""
        lock = ".vit-parts.lock"
        owned = OwnedFolder(
            self.out, "set of parts", lock, files=(PARTS,), folders=(PARTS_FOLDER,), marker=PARTS
        )

        def begin() -> None:
            before = read_json(self.out / PARTS) or index
            keys = [key for key in ("part_rows", "num_rows") if before.get(key) != index[key]]
            asked = before.get("asked") or {}
            keys += [key for key in {**asked, **self.asked} if asked.get(key) != self.asked.get(key)]
            refuse_other(self.out, "other parts", [f"another {key}" for key in keys])
            write_json(self.out / PARTS, before)

        owned.refuse_foreign()
        owned.join(begin, overwrite=overwrite)

    def _make_part(self, split: Split, first: int, file: Path, settings: EvalSettings) -> dict[str, Any]:
        last = min(first + self.rows, len(split))
        part = split.part(first, last, name=f"{split.name}, rows {first} to {last - 1}")
        self.write(part, first, file)
        return settings.runtime.on_main(partial(self.read, file))

    def _finished(self, file: Path) -> dict[str, Any] | None:
        try:
            return self.read(file)
        except (OSError, ValueError):  # missing, or damaged: it is made again
            return None


def rows_of_text(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the rows of a result for a terminal that tell of the parts."""
    images = text.count_of(result["num_examples"], "image")
    parts = f"{text.count_of(result['num_parts'], 'file')} of {result['part_rows']:,} rows"
    return [("folder", text.Verbatim(result["out"])), ("images", f"{images}, {parts}")]
