"""`vit export`: a checkpoint in another format, whose logits are compared before it is said to be done."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitcli.data import loader
from vitcli.data.dataset import DataSet
from vitcli.data.image_files import as_split, find_images
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import CheckFailed, MachineError, VitError, WeightsError
from vitcli.evaluation.setup import preprocessing_for
from vitcli.export import output_check
from vitcli.export.output_check import Agreement
from vitcli.output.atomic import TEMPORARY, check_out, sync
from vitcli.output.progress import Progress
from vitcli.output.text import pairs
from vitcli.recipe.request import RecipeRequest
from vitcli.weights import formats, onnx
from vitcli.weights.formats import Exported
from vitcli.weights.io import Weights, read_weights
from vitcli.weights.load import load

DEMO_PICTURES, MAX_PICTURES, BATCH_SIZE = 32, 256, 16
TOLERANCE = 1e-4  # relative: a hybrid in timm is 5e-5 away, another GELU 7e-5 to 7e-4
IN_A_TIMM_FOLDER = {"config.json", "model.safetensors", "pytorch_model.bin"}


def export(
    ckpt: str,
    out: str,
    *,
    to: str | None,
    model_name: str | None,
    image_size: tuple[int, int] | None,
    head: bool,
    names: str,
    pictures: Sequence[str],
    overwrite: bool,
    quiet: bool,
) -> dict[str, Any]:
    """Write the checkpoint in another format, read it back, and keep it if both say the same of pictures.

    Args:
        out: a file, or for "timm" a folder.
        to: one of export_formats.SUFFIXES; None goes by the suffix of `out`.
        image_size: height and width in pixels; position embeddings are resampled as in the paper.
        head: False leaves the features.
        names: one of official.SPELLINGS, for "npz".
        pictures: files, folders and globs; none means pictures of the demo.

    Raises:
        CheckFailed: what was written gives other logits. Then, as after any error, `out` is as it was.
    """
    began_at = time.perf_counter()
    progress, target = Progress(quiet=quiet), Path(os.path.abspath(out))
    format = _checked_format(to, target, names=names, overwrite=overwrite)
    split = _opened(pictures, progress)
    weights = read_weights(ckpt, model_name=model_name)
    preprocessing, origin = _preprocessing(weights, image_size)
    exported, notes = _to_export(weights, preprocessing, head=head)
    arch = exported.architecture
    formats.check_supported(format, arch)
    progress.note(f"{arch.name} ({weights.numerics}) to {format}: {preprocessing.summary()}, {origin}")
    notes += formats.caveats(format, arch)
    with _workplace(target) as folder:
        path = folder / target.name
        formats.write(format, path, exported, names=names)
        found = _checked(format, path, exported, split, preprocessing, progress=progress)
        files = _sizes(path)
        _put_in_place(path, target)
    if not found.max_output:
        notes.append("every output is zero, as of a fresh head: that they agree says little")
    for note in notes:
        progress.note(note)
    return {
        "command": "export",
        "ckpt": ckpt,
        "model": arch.name,
        "numerics": weights.numerics,
        "format": format,
        "out": out,
        "files": files,
        "resolution": preprocessing.resolution,
        "num_classes": arch.num_classes,
        "num_images": len(split),
        "images": list(pictures) or "demo",
        **_compared(found),
        "elapsed_s": time.perf_counter() - began_at,
        "notes": notes,
    }


def _compared(found: Agreement) -> dict[str, Any]:
    return {
        "max_abs_difference": found.max_difference,
        "max_rel_difference": found.max_rel_difference,
        "top1_agreement": found.top1,
    }


def as_text(result: dict[str, Any]) -> str:
    """For a person."""
    size, agree, out = result["resolution"], result["top1_agreement"], result["out"]
    sides = str(size) if isinstance(size, int) else "x".join(map(str, size))
    difference = f"{result['max_abs_difference']:.2g}, relative {result['max_rel_difference']:.2g}"
    use = {
        "timm": f'timm.create_model("local-dir:{out}", pretrained=True)',
        "onnx": '"images" (B, 3, H, W), normalised as "preprocessing" in its metadata says',
    }
    return pairs(
        [
            ("model", f"{result['model']} at {sides} px, {result['numerics']}"),
            ("head", f"{result['num_classes']} classes" if result["num_classes"] else "none, features only"),
            (
                "compared",
                f"{result['num_images']} pictures{', drawn by the demo' * (result['images'] == 'demo')}",
            ),
            ("difference", difference),
            *([] if agree is None else [("same top-1", f"{agree:.2%}")]),
            ("written", f"{result['format']}: {out}"),
            ("files", files_text(result["files"])),
            ("use", use.get(result["format"], f"--ckpt {out}")),
        ]
    )


def files_text(files: dict[str, int]) -> str:
    """Return names and sizes on one line."""
    sizes = {name: f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.1f} kB" for name, n in files.items()}
    return ", ".join(f"{name} ({size})" for name, size in sizes.items())


def _checked_format(to: str | None, target: Path, *, names: str, overwrite: bool) -> str:
    """The format, once nothing but the network can stand in its way."""
    format = formats.format_of(to, target, names=names)
    _check_out(target, format, overwrite)
    if format == "onnx":
        onnx.check_installed()
    return format


def _check_out(target: Path, format: str, overwrite: bool) -> None:
    """Refuse, before any work, a path whose files would be lost."""
    if format != "timm":
        files = [target]
        if format == "onnx":
            files.append(target.with_name(f"{target.name}.data"))  # the weights of a large .onnx file
        for file in files:
            check_out(file, overwrite=overwrite, option="OUT", folder_error=VitError)
        return
    fix = "choose another name"
    if target.is_file():
        raise VitError(f"{target} is a file", where="OUT", fix=fix)
    inside = {path.name for path in target.iterdir()} if target.is_dir() else set()
    if inside - IN_A_TIMM_FOLDER:
        raise VitError(
            f"{target} holds more than a timm folder does, such as {min(inside - IN_A_TIMM_FOLDER)}",
            where="OUT",
            fix=f"{fix}; it would be deleted, which --overwrite does not do either",
        )
    if inside and not overwrite:
        raise VitError(f"{target} already exists", where="OUT", fix=f"{fix}, or replace it with --overwrite")


def _opened(pictures: Sequence[str], progress: Progress) -> Split:
    if not pictures:
        return DataSet("demo").open(f"test[:{DEMO_PICTURES}]")
    files = find_images(pictures, where="--images")
    if len(files) > MAX_PICTURES:
        progress.note(f"{len(files)} pictures are given, of which the first {MAX_PICTURES} are compared")
    return as_split(files[:MAX_PICTURES])


def _preprocessing(weights: Weights, image_size: tuple[int, int] | None) -> tuple[Preprocessing, str]:
    """As `vit evaluate` has it for the same weights."""
    shorthands = {"data.image_size": "{}x{}".format(*image_size)} if image_size else {}
    request = RecipeRequest(shorthands=shorthands)
    return preprocessing_for(weights, request.load(), request)


def _to_export(weights: Weights, preprocessing: Preprocessing, *, head: bool) -> tuple[Exported, list[str]]:
    """The network for these pixels, and what was done to it."""
    model, arch, report = load(weights, image_size=preprocessing.image_size, num_classes=None if head else 0)
    class_names = weights.class_names if head else None
    notes = [f"resampled: {', '.join(report.resampled)}"] if report.resampled else []
    return Exported(model.eval(), arch, preprocessing.as_dict(), class_names, weights.metadata), notes


def _checked(
    format: str,
    path: Path,
    exported: Exported,
    split: Split,
    preprocessing: Preprocessing,
    *,
    progress: Progress,
) -> Agreement:
    """How what is written agrees with what it was written from; CheckFailed if it does not."""
    batches = list(
        loader.eval_batches(
            split,
            preprocessing,
            batch_size=BATCH_SIZE,
            rank=0,
            world_size=1,
            on_bad_image="error",
            num_threads=loader.default_threads(1),
        )
    )
    ours_NK = output_check.outputs(
        exported.model, batches, preprocessing, title="checkpoint", progress=progress
    )
    theirs = formats.read_back(format, path)
    try:
        theirs_NK = output_check.outputs(theirs, batches, preprocessing, title="export", progress=progress)
    except WeightsError as error:
        raise _unlike(format, exported, "are not finite numbers") from error
    found = output_check.compare(ours_NK, theirs_NK, are_logits=exported.architecture.num_classes > 0)
    if found.max_rel_difference > TOLERANCE:
        differ = f"differ by {found.max_difference:.2g}, relative {found.max_rel_difference:.2g}"
        raise _unlike(format, exported, f"{differ} where {TOLERANCE:g} is allowed")
    return found


def _unlike(format: str, exported: Exported, how: str) -> CheckFailed:
    known = "".join(f"; {caveat}" for caveat in formats.caveats(format, exported.architecture))
    return CheckFailed(
        f"the outputs of what was written as {format} {how}{known}",
        where=f"--to {format}, {exported.architecture.name}",
        fix="nothing was kept; export to another format, such as safetensors, and please report it",
    )


@contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    """A folder beside `target` that is gone afterwards, with all that is still in it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{TEMPORARY}{target.name}-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        fix = "make room, or choose another folder"
        raise MachineError(f"{target.name} was not written: {error}", where=str(target), fix=fix) from error


def _written(path: Path) -> list[Path]:
    """The files at `path`, a file with what lies beside it or a folder."""
    return sorted(path.iterdir() if path.is_dir() else path.parent.glob("*"))


def _sizes(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in _written(path)}


def _put_in_place(path: Path, target: Path) -> None:
    """Rename what is written to where it belongs; what was there goes only once it is on disk."""
    for file in _written(path):
        sync(file)
    if path.is_dir():
        replaced = path.with_name(f"{path.name}.replaced")
        if target.exists():
            os.rename(target, replaced)
        try:
            os.rename(path, target)
        except BaseException:
            if replaced.exists():
                os.rename(replaced, target)
            raise
    else:
        for file in reversed(_written(path)):  # the weights of an .onnx file before it names them
            os.replace(file, target.with_name(file.name))
    sync(target.parent)
