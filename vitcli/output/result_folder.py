"""A folder (--out) that holds the result of `vit evaluate` or `vit inspect`.

The same request may be repeated, and its result is written again; another request needs --overwrite.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.errors import MachineError, VitError
from vitcli.output import atomic, run_folder
from vitcli.output.atomic import read_json
from vitcli.output.owned_folder import OwnedFolder, refuse_other


@dataclass(frozen=True)
class ResultFolder:
    """The files that a command writes to its folder.

    Attributes:
        noun: name of a result; with an s it is the key under which one file holds several.
        result: the JSON file of the result, or of all results. Each has its request under "asked".
        names: all files of one result; each of several is in a numbered folder.
    """

    noun: str
    result: str
    names: tuple[str, ...]

    def at(self, folder: Path) -> OwnedFolder:
        """Return the folder of one result, or of several."""
        files = (*(name for name in self.names if name != self.result), self.result)
        return OwnedFolder(folder, self.noun, lock=f".vit-{self.noun}.lock", files=files)

    def folders(self, out: Path, num_results: int) -> list[Path]:
        """Return the folder of each result."""
        return [out] if num_results == 1 else [out / str(k) for k in range(1, num_results + 1)]

    def check_names(self, out: Path, num_results: int) -> None:
        """Refuse, before any work, a folder that cannot take the files; make nothing.

        Raises:
            MachineError: it cannot be written, or folders have the names of files.
            VitError: it is the folder of a run.
        """
        for folder in dict.fromkeys([out, *self.folders(out, num_results)]):
            atomic.check_can_write_in(folder, option="--out")
            taken = next((folder / name for name in self.names if (folder / name).is_dir()), None)
            if taken:
                raise MachineError(f"{taken} is a folder", where="--out", fix="choose another folder")
            if (folder / run_folder.LOCK).exists() or (folder / "checkpoints").is_dir():
                run_folder.refuse_run(folder, self.noun)

    def claim(
        self,
        held: ExitStack,
        out: Path,
        asked: Sequence[dict[str, Any]],
        *,
        overwrite: bool,
        wait_s: float = 0.0,
    ) -> None:
        """Lock the folder until `held` is closed, and check before any work that the results can be written.

        Args:
            wait_s: for another process that holds it.

        Raises:
            MachineError: it cannot be written, or another process holds it.
            VitError: it holds the result of another request, and is not to be overwritten.
        """
        self.at(out).claim(held, wait_s=wait_s)
        folders = self.folders(out, len(asked))
        for folder in folders:
            if folder != out:
                self.at(folder).refuse_links(is_inside=True)
            if folder != out and (folder / self.result).exists():
                raise VitError(
                    f"{folder} holds {self.noun} results of its own",
                    where=f"--out {out}",
                    fix="choose another folder with --out",
                )
        if not overwrite and (out / self.result).exists():
            refuse_other(out, f"another {self.noun}", self._differences(out, asked))
        elif not overwrite:
            self._refuse_foreign_files(folders)
        for folder in folders:
            self.at(folder).make(held)

    def begin(self, out: Path, asked: Sequence[dict[str, Any]]) -> None:
        """Delete an earlier result, and write the requests first: they mark the files of a killed command."""
        self.clear(out)
        each = [{"asked": request} for request in asked]
        atomic.write_json(out / self.result, each[0] if len(each) == 1 else {f"{self.noun}s": each})

    def clear(self, out: Path) -> None:
        """Delete an earlier result, and nothing else."""
        if not (out / self.result).exists():
            return
        several = (read_json(out / self.result) or {}).get(f"{self.noun}s")
        num_results = len(several) if isinstance(several, list) else 1
        for folder in {*self.folders(out, num_results), out}:
            self.at(folder).clear()
            if folder != out and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _differences(self, out: Path, asked: Sequence[dict[str, Any]]) -> list[str]:
        """Compare the requests with those of the result in the folder."""
        try:
            stored = read_json(out / self.result)
            before = [result["asked"] for result in stored.get(f"{self.noun}s", [stored])]
            return differences(before, json.loads(json.dumps(asked)), noun=self.noun)
        except (KeyError, TypeError, AttributeError):
            return [f"{self.result} does not say what was asked"]

    def _refuse_foreign_files(self, folders: Sequence[Path]) -> None:
        """Refuse to replace files with the names of a result where no result is."""
        paths = (folder / name for folder in folders for name in self.names)
        taken = next((path for path in paths if path.exists()), None)
        if taken:
            raise VitError(
                f"{taken.name} already exists, and belongs to no known {self.noun}",
                where=f"--out {taken.parent}",
                fix="choose another folder, or replace files of these names with --overwrite",
            )


def differences(before: Sequence[dict[str, Any]], asked: Sequence[dict[str, Any]], *, noun: str) -> list[str]:
    """Return in words how the requests differ from those before; nothing if they are the same."""
    if len(before) != len(asked):
        return [f"{len(before)} {noun}{'s' * (len(before) != 1)} there, {len(asked)} here"]
    changes = {
        f"{key} {old.get(key, 'not given')} there, {new.get(key, 'not given')} here": None
        for old, new in zip(before, asked, strict=True)
        for key in (*new, *(old.keys() - new.keys()))
        if old.get(key) != new.get(key)
    }
    return list(changes)
