"""A folder (--out) that holds one result of a command, ours alone while it is written.

The same question may be asked again and its answer written anew; another one needs --overwrite.
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
from vitcli.output.owned_folder import OwnedFolder, missing, refuse_other, remove_empty


@dataclass(frozen=True)
class ResultFolder:
    """What a command leaves in its folder.

    Attributes:
        noun: what a person calls a result; with an s it is the key under which one file holds several.
        result: the JSON file of the result, or of all results. Each says under "asked" what its question was.
        names: all files of one result; of several, each is in a numbered folder.
    """

    noun: str
    result: str
    names: tuple[str, ...]

    @property
    def lock(self) -> str:
        return f".vit-{self.noun}.lock"

    def at(self, folder: Path) -> OwnedFolder:
        """Return the folder of one result, or of several with one lock."""
        return OwnedFolder(folder, self.noun, lock=self.lock, files=self.names)

    def folders(self, out: Path, num_results: int) -> list[Path]:
        """Where each result has its files."""
        return [out] if num_results == 1 else [out / str(k) for k in range(1, num_results + 1)]

    def check_names(self, out: Path, num_results: int) -> None:
        """Refuse, before any work and with nothing made, a folder that does not take our files.

        Raises:
            MachineError: it cannot be written, or other things have the names.
            VitError: it is the folder of a run.
        """
        for folder in dict.fromkeys([out, *self.folders(out, num_results)]):
            atomic.check_can_write_in(folder, option="--out")
            taken = next((folder / name for name in self.names if (folder / name).is_dir()), None)
            if taken:
                raise MachineError(f"{taken} is a folder", where="--out", fix="choose another folder")
            is_begun = (folder / run_folder.LOCK).exists() or (folder / "checkpoints").is_dir()
            if is_begun:
                run_folder.refuse_run(folder, self.noun)

    def claim(self, held: ExitStack, out: Path, asked: Sequence[dict[str, Any]], *, overwrite: bool) -> None:
        """Before any work: the folder can be written, and is ours alone until `held` is closed.

        Raises:
            MachineError: it cannot be written, or another process holds it.
            VitError: it holds the answer to another question, and is not to be overwritten.
        """
        self.at(out).claim(held)
        for folder in self.folders(out, len(asked)):
            if folder != out and (folder / self.result).exists():
                raise VitError(
                    f"{folder} holds {self.noun} results of its own",
                    where=f"--out {out}",
                    fix="choose another folder with --out",
                )
        if not overwrite:
            self._refuse_another(out, asked)
        for folder in self.folders(out, len(asked)):
            held.callback(remove_empty, missing(folder))
            atomic.make_folder(folder, option="--out")

    def begin(self, out: Path, asked: Sequence[dict[str, Any]]) -> None:
        """Before the first file is written: delete an earlier result, and say what this one will answer.

        So what a killed command leaves is known for ours.
        """
        self.clear(out)
        each = [{"asked": one} for one in asked]
        atomic.write_json(out / self.result, each[0] if len(each) == 1 else {f"{self.noun}s": each})

    def clear(self, out: Path) -> None:
        """Delete an earlier result, and nothing else."""
        if not (out / self.result).exists():
            return
        for folder in {*self.folders(out, self._num_results(out)), out}:
            self.at(folder).clear()
            if folder != out and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _num_results(self, out: Path) -> int:
        """Count the results in the folder; 1 if its file does not say."""
        several = (read_json(out / self.result) or {}).get(f"{self.noun}s")
        return len(several) if isinstance(several, list) else 1

    def _refuse_another(self, out: Path, asked: Sequence[dict[str, Any]]) -> None:
        if not (out / self.result).exists():
            self._refuse_others_files(out, len(asked))
            return
        try:
            stored = read_json(out / self.result)
            before = [one["asked"] for one in stored.get(f"{self.noun}s", [stored])]
            told = differences(before, json.loads(json.dumps(asked)), noun=self.noun)
        except (KeyError, TypeError, AttributeError):
            told = [f"{self.result} does not say what was asked"]
        refuse_other(out, f"another {self.noun}", told)

    def _refuse_others_files(self, out: Path, num_results: int) -> None:
        places = (folder / name for folder in self.folders(out, num_results) for name in self.names)
        taken = next((place for place in places if place.exists()), None)
        if taken:
            raise VitError(
                f"{taken.name} is there, and is of no {self.noun} that is known",
                where=f"--out {taken.parent}",
                fix="choose another folder, or replace what has our names with --overwrite",
            )


def differences(before: Sequence[dict[str, Any]], asked: Sequence[dict[str, Any]], *, noun: str) -> list[str]:
    """In what the questions differ, in words; nothing if they are the same."""
    if len(before) != len(asked):
        return [f"{len(before)} {noun}{'s' * (len(before) != 1)} there, {len(asked)} here"]
    told = {
        f"{key} {old.get(key, 'not given')} there, {new.get(key, 'not given')} here": None
        for old, new in zip(before, asked, strict=True)
        for key in (*new, *(old.keys() - new.keys()))
        if old.get(key) != new.get(key)
    }
    return list(told)
