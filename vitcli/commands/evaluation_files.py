"""What `vit evaluate` leaves on disk: evaluation.json, tables, pictures, predictions."""

import csv
import fcntl
import io
import json
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitcli import evaluation_figures, loader, prediction_files, predictions, runlog
from vitcli.commands.scores import MISTAKES_SHOWN, Question, Scored
from vitcli.errors import MachineError, VitError
from vitcli.safe_files import replace_file

LOCK = ".vit-evaluate.lock"
RESULT = "evaluation.json"
NAMES = (RESULT, "per_class.csv", "confusion.csv", "confusion.png", "reliability.png", "mistakes.png",
         "resolution.png")  # fmt: skip
MOST_TOLD = 4  # differences


def check_names(out: Path, num_evaluations: int) -> None:
    """Refuse, before any work and with nothing made, a folder that does not take our files.

    Raises:
        MachineError: it cannot be written, or other things have the names.
        VitError: it is the folder of a run.
    """
    for folder in _folders(out, num_evaluations):
        prediction_files.check_can_write_in(folder.resolve(), option="--out")
        taken = next((folder / name for name in NAMES if (folder / name).is_dir()), None)
        if taken:
            raise MachineError(f"{taken} is a folder", where="--out", fix="choose another folder")
    if (out / runlog.RECIPE).is_file() and ((out / runlog.LOCK).exists() or (out / "checkpoints").is_dir()):
        raise VitError(
            "the folder is that of a run",
            where=f"--out {out}",
            fix=f"give the evaluation a folder of its own, such as --out {out / 'evaluation'}",
        )


def claim(
    held: ExitStack,
    questions: Sequence[Question],
    *,
    out: Path | None,
    save_predictions: str | None,
    overwrite: bool,
) -> None:
    """Before the first pass: both places can be written, and OUT is ours alone until `held` is closed.

    Raises:
        MachineError: a place cannot be written, or another process holds OUT.
        VitError: OUT holds another evaluation, and is not to be overwritten.
    """
    if save_predictions:
        folder = Path(save_predictions).resolve().parent
        prediction_files.try_to_write_in(folder, option="--save-predictions")
    if out is None:
        return
    prediction_files.try_to_write_in(out.resolve(), option="--out")
    _lock(held, out)
    if not overwrite:
        _refuse_another(out, [question.asked() for question in questions])
    for folder in _folders(out, len(questions)):
        prediction_files.try_to_write_in(folder.resolve(), option="--out")


def write_all(
    scored: Sequence[Scored],
    result: dict[str, Any],
    *,
    out: Path | None,
    save_predictions: str | None,
    overwrite: bool,
) -> None:
    """Write what was asked for; of several evaluations the first one's tables and pictures go to OUT/1."""
    if save_predictions:
        (one,) = scored
        rows_N, places = one.question.source_rows[one.found.rows_N], one.places
        prediction_files.write_predictions(save_predictions, one.found, rows_N, places, _about(one))
        result["saved_predictions"] = save_predictions
    if out is None:
        return
    _clear(out)  # what an earlier evaluation had and this one has not, such as mistakes
    for folder, one in zip(_folders(out, len(scored)), scored, strict=True):
        one.result["out"] = str(folder)
        _write_tables(folder, one)
        _write_pictures(folder, one)
    result["out"] = str(out)
    _write_text(out / RESULT, json.dumps(result, indent=2) + "\n")


def _folders(out: Path, num_evaluations: int) -> list[Path]:
    """Where the tables and pictures of each evaluation go."""
    return [out] if num_evaluations == 1 else [out / str(k) for k in range(1, num_evaluations + 1)]


def _lock(held: ExitStack, out: Path) -> None:
    """An advisory lock that ends with the process, however it ends; its file goes when `held` is closed."""
    path = out / LOCK
    while True:
        lock = held.enter_context(open(path, "a+"))  # noqa: SIM115, open as long as it is held
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise MachineError(
                f"another evaluation is writing this folder: {lock.read().strip() or 'another process'}",
                where=f"--out {out}",
                fix="wait for it, stop it, or choose another folder with --out",
            ) from None
        # One that ended in between has taken its file away, and the next one locks a file of its own.
        if path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            break
    lock.truncate(0)
    lock.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
    lock.flush()
    held.callback(path.unlink, missing_ok=True)


def _refuse_another(out: Path, asked: list[dict[str, Any]]) -> None:
    """The very same evaluation may be written again; for another one --overwrite is needed."""
    if not (out / RESULT).exists():
        return
    try:
        stored = json.loads((out / RESULT).read_text(encoding="utf-8"))
        before = [one["asked"] for one in stored.get("evaluations", [stored])]
        differing = _differences(before, json.loads(json.dumps(asked)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        differing = [f"{RESULT} does not say what was asked"]
    if differing:
        raise VitError(
            f"the folder holds another evaluation: {'; '.join(differing[:MOST_TOLD])}",
            where=f"--out {out}",
            fix="choose another folder, or replace what is there with --overwrite",
        )


def _differences(before: list[dict[str, Any]], asked: list[dict[str, Any]]) -> list[str]:
    if len(before) != len(asked):
        return [f"{len(before)} evaluations there, {len(asked)} here"]
    told = {
        f"{key} {old.get(key, 'not given')} there, {new.get(key, 'not given')} here": None
        for old, new in zip(before, asked, strict=True)
        for key in (*new, *(old.keys() - new.keys()))
        if old.get(key) != new.get(key)
    }
    return list(told)


def _clear(out: Path) -> None:
    """Delete an earlier evaluation, and nothing else."""
    if not (out / RESULT).exists():
        return
    numbered = takewhile(Path.is_dir, (out / str(number) for number in count(1)))
    for folder in (*numbered, out):
        for name in NAMES:
            (folder / name).unlink(missing_ok=True)
        if folder != out and not any(folder.iterdir()):
            folder.rmdir()


def _about(one: Scored) -> dict[str, Any]:
    """What `vit compare` and people are to know of a file of predictions."""
    keys = ("ckpt", "model", "dataset", "eval_split", "resolution", "preprocessing", "top1", "class_map")
    return {key: one.result.get(key) for key in keys} | {"class_names": list(one.class_names)}


def _write_tables(folder: Path, one: Scored) -> None:
    if one.found.has_several_labels:
        return
    number_of = {name: number for number, name in enumerate(one.class_names)}
    per_class = [
        (
            number_of[name],
            name,
            entry["num_examples"],
            round(entry["top1"] * entry["num_examples"]),
            entry["top1"],
        )
        for name, entry in one.result["per_class"].items()
    ]
    _write_csv(folder / "per_class.csv", ("label", "class", "num_examples", "num_right", "top1"), per_class)
    pairs = zip(*(column.tolist() for column in _confusion(one)), strict=True)
    confused = [(one.class_names[label], one.class_names[guess], count) for label, guess, count in pairs]
    _write_csv(folder / "confusion.csv", ("class", "predicted", "num_examples"), confused)


def _write_pictures(folder: Path, one: Scored) -> None:
    title = f"ECE {one.result['ece']:.2%} of {len(one.found)} examples"
    _save(folder / "reliability.png", evaluation_figures.reliability_diagram(one.reliability, title=title))
    if not one.found.has_several_labels:
        _save(
            folder / "confusion.png", evaluation_figures.confusion_matrix(*_confusion(one), one.class_names)
        )
    pictures = list(_mistakes(one))
    if pictures:
        _save(folder / "mistakes.png", evaluation_figures.mistakes_grid(pictures))
    curve = one.result.get("resolutions")
    if curve:
        sides, top1, top5 = ([entry[key] for entry in curve] for key in ("resolution", "top1", "top5"))
        figure = evaluation_figures.resolution_curve(sides, top1, top5, own=one.own_side)
        _save(folder / "resolution.png", figure)


def _confusion(one: Scored):
    return predictions.confusion(one.found, len(one.class_names))


def _mistakes(one: Scored) -> Iterable[tuple]:
    """The surest wrong predictions with their pictures, as the network saw them."""
    found = one.found
    places = predictions.most_confident_mistakes(found, MISTAKES_SHOWN)
    for at, told in zip(places, one.result["mistakes"], strict=True):
        image_HWC, _ = loader.read_example(one.question.split, int(found.rows_N[at]))
        yield one.preprocessing(image_HWC), told["label"], told["predicted"], told["probability"]


def _save(path: Path, figure: Figure) -> None:
    replace_file(path, lambda file: figure.savefig(file, format="png"))


def _write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple]) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows(rows)
    _write_text(path, text.getvalue())


def _write_text(path: Path, text: str) -> None:
    replace_file(path, lambda file: file.write_text(text, encoding="utf-8"))
