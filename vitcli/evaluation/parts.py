"""Very many rows in parts (--part-rows): a file for each, which any number of workers of a command share.

OUT/parts.json says what was asked; OUT/parts/FIRST.suffix holds the rows from FIRST on, whole or not at all.
No part knows another, so a kill costs a part.
"""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.data.split import Split
from vitcli.errors import MachineError, Stopped
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
        rows: of a part.
        asked: all that a file depends on besides its rows, as JSON.
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

    def make(
        self, split: Split, settings: EvalSettings, *, overwrite: bool
    ) -> tuple[dict[str, Any], list[Path]]:
        """Make the parts that no other worker makes, inside `shared_process_group`.

        Returns:
            The counts of all, also written to the index, and the files in order.

        Raises:
            VitError: the folder holds something else, or parts of another request.
            Stopped: by the user; the same command makes the parts that are left.
            MachineError: a part has been deleted meanwhile.
        """
        runtime, firsts = settings.runtime, range(0, len(split), self.rows)
        files = [self.out / PARTS_FOLDER / f"{first:012}{self.suffix}" for first in firsts]
        names = [str(file.relative_to(self.out)) for file in files]
        index = {"part_rows": self.rows, "num_rows": len(split), "asked": dict(self.asked), "parts": names}
        cells = []
        for first, file in zip(firsts, files, strict=True):
            count = min(self.rows, len(split) - first)
            work = partial(self._make_part, split, first, count, file, settings)
            cells.append(WorkCell(str(first), file, work, partial(self._finished, file, count)))
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
            if missing := [file for file in files if not file.is_file()]:
                what, fix = "parts have been deleted meanwhile", "type the same command without --overwrite"
                raise MachineError(what, where=text.first_few([*map(str, missing)], 1), fix=fix)
            write_json(self.out / PARTS, index | counts)
            Cells(self.out).end()

        runtime.on_main(end)
        return {"out": str(self.out), "part_rows": self.rows, **counts}, files

    def _join(self, index: dict[str, Any], *, overwrite: bool) -> None:
        """Open the folder beside other workers; a request that has left no part gives way to another."""
        owned = OwnedFolder(self.out, "set of parts", LOCK, (PARTS,), (PARTS_FOLDER,), marker=PARTS)

        def begin() -> None:
            before = read_json(self.out / PARTS)
            has_parts = any((self.out / PARTS_FOLDER).glob(f"[0-9]*{self.suffix}"))
            has_parts |= any((self.out / str(name)).is_file() for name in (before or {}).get("parts") or ())
            if has_parts:
                refuse_other(self.out, "other parts", _differences(before or {}, index))
            if not has_parts or before is None:
                write_json(self.out / PARTS, index)

        owned.refuse_foreign()
        owned.join(begin, overwrite=overwrite)

    def _make_part(
        self, split: Split, first: int, count: int, file: Path, settings: EvalSettings
    ) -> dict[str, Any]:
        part = split.part(first, first + count, name=f"{split.name}, rows {first} to {first + count - 1}")
        number, num_parts = first // self.rows + 1, -(-len(split) // self.rows)
        settings.progress.note(f"part {number:,} of {num_parts:,}: {part.name}")
        if split.is_large and part.block_starts is None:  # so is the part: labels are checked as they come
            part = replace(part, block_starts=np.arange(count + 1))
        self.write(part, first, file)
        return settings.runtime.on_main(partial(self.read, file))

    def _finished(self, file: Path, count: int) -> dict[str, Any] | None:
        """Return the counts of a file; None if it is missing or damaged, and made again."""
        try:
            part = self.read(file)
        except (OSError, ValueError):
            return None
        return part if part["num_examples"] + len(part["skipped_images"]) == count else None


def _differences(before: Mapping[str, Any], index: Mapping[str, Any]) -> list[str]:
    """Return in words what was asked otherwise."""
    names = {"part_rows": "--part-rows", "num_rows": "number of images"}
    kinds = [f"another {name}" for key, name in names.items() if before.get(key) != index[key]]
    there, here = before.get("asked") or {}, index["asked"]
    return kinds + [f"another {key}" for key in {**there, **here} if there.get(key) != here.get(key)]


def summary_rows(result: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the rows of a result for a terminal that tell of the parts."""
    images = text.count_of(result["num_examples"], "image")
    parts = f"{text.count_of(result['num_parts'], 'file')} of {result['part_rows']:,} rows"
    return [("folder", text.Verbatim(result["out"])), ("images", f"{images}, {parts}")]
