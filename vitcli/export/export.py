"""`vit export`: write a checkpoint in another format, read it back and compare the outputs.

Letters: N images, B of a batch, K outputs.
"""

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.data import loader
from vitcli.data.dataset import DataSet
from vitcli.data.image_files import find_images
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import CheckFailed, MachineError, VitError, WeightsError
from vitcli.evaluation.belief.stored import belief_of
from vitcli.evaluation.inference import outputs_of
from vitcli.evaluation.regression import target_of
from vitcli.evaluation.setup import preprocessing_for
from vitcli.evaluation.several_labels import several_labels_of
from vitcli.export.snippet import onnx_snippet
from vitcli.models.architecture import Architecture
from vitcli.output.atomic import TEMPORARY, check_out, remove_debris, sync
from vitcli.output.progress import Progress
from vitcli.output.text import Verbatim, count_of, model_text, pairs, size_text
from vitcli.recipe.request import RecipeRequest
from vitcli.weights import formats, onnx
from vitcli.weights.io import Weights, read_weights
from vitcli.weights.jax import SPELLINGS
from vitcli.weights.load import load

NUM_DEMO_IMAGES, MAX_IMAGES, BATCH_SIZE = 32, 256, 16
TOLERANCE = 1e-4  # relative: a hybrid in timm is 5e-5 away, another GELU 7e-5 to 7e-4
IN_A_TIMM_FOLDER = {"config.json", "model.safetensors", "pytorch_model.bin"}


@dataclass(frozen=True)
class ExportOptions:
    """Options of `vit export`.

    Attributes:
        to: one of `formats.SUFFIXES`; None takes the format of OUT's suffix.
        model_name: of a checkpoint that does not name its architecture.
        image_size: height and width in pixels; position embeddings are resampled as in the paper.
        head: False exports the features.
        names: one of `jax.SPELLINGS`, for "npz".
        images: files, folders and globs to compare on; none means images of the demo.
        overwrite: replace an existing OUT.
    """

    to: str | None = None
    model_name: str | None = None
    image_size: tuple[int, int] | None = None
    head: bool = True
    names: str = SPELLINGS[0]
    images: Sequence[str] = ()
    overwrite: bool = False


@dataclass(frozen=True)
class Agreement:
    """Differences between the outputs of two networks.

    Attributes:
        max_difference: the largest absolute difference of any output.
        max_output: the largest absolute output of the first network.
        top1: fraction of the images that both assign to the same class; None where outputs are features.
    """

    max_difference: float
    max_output: float
    top1: float | None

    @property
    def max_rel_difference(self) -> float:
        """Return the largest difference as a fraction of the largest output."""
        if not self.max_output:
            return float("inf") if self.max_difference else 0.0
        return self.max_difference / self.max_output


def export(ckpt: str, out: str, options: ExportOptions, *, quiet: bool) -> dict[str, Any]:
    """Write the checkpoint in another format, read it back, and keep it if the outputs agree.

    Args:
        out: a file, or a folder for "timm".

    Raises:
        CheckFailed: the export gives other outputs. As after any error, `out` is then unchanged.
    """
    began_at = time.perf_counter()
    progress, target = Progress(quiet=quiet), Path(os.path.abspath(out))
    # Refuse what can be refused before any work
    format = formats.format_of(options.to, target, names=options.names)
    _bring_back(target)
    _check_out(target, format, options.overwrite)
    if format == "onnx":
        onnx.check_installed()
    split = _open_images(options.images, progress)
    # Load the network
    weights = read_weights(ckpt, model_name=options.model_name, quiet=quiet)
    preprocessing, origin = _preprocessing(weights, options.image_size)
    model, exported, notes = _network(weights, preprocessing, head=options.head)
    arch = exported.architecture
    formats.check_supported(format, arch)
    progress.note(f"{arch.name} ({weights.numerics}) to {format}: {preprocessing.summary()}, {origin}")
    notes += formats.caveats(format, arch)
    # Write, compare, and only then replace OUT
    with _temporary_folder(target) as folder:
        path = folder / target.name
        formats.write(format, path, model, exported, names=options.names)
        agreement = _check_outputs(format, path, model, arch, split, preprocessing, progress)
        files = {file.name: file.stat().st_size for file in _files_at(path)}
        _put_in_place(path, target)
    if not agreement.max_output:
        notes.append("every output is zero, as with a fresh head: their agreement proves little")
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
        "preprocessing": preprocessing.summary(),
        "num_classes": arch.num_classes,
        "license": weights.licence,
        "num_images": len(split),
        "images": list(options.images) or "demo",
        "max_abs_difference": agreement.max_difference,
        "max_rel_difference": agreement.max_rel_difference,
        "top1_agreement": agreement.top1,
        "elapsed_s": time.perf_counter() - began_at,
        "notes": notes,
        **({"snippet": _snippet(out, exported, preprocessing)} if format == "onnx" else {}),
    }


def as_text(result: dict[str, Any]) -> str:
    agreement, out, num_classes = result["top1_agreement"], result["out"], result["num_classes"]
    drawn = " of the demo" if result["images"] == "demo" else ""
    usage = {
        "timm": Verbatim(f'timm.create_model("local-dir:{out}", pretrained=True)'),
        "onnx": '"images" (B, 3, H, W), made as "preprocessing" in its metadata says, to "logits"',
    }
    rows = [
        ("model", f"{model_text(result)}; {size_text(result['resolution'])} px"),
        ("pixels", result["preprocessing"]),
        ("head", count_of(num_classes, "class", "classes") if num_classes else "none, features only"),
        ("compared on", f"{count_of(result['num_images'], 'image')}{drawn}"),
        ("difference", f"{result['max_abs_difference']:.2g}, relative {result['max_rel_difference']:.2g}"),
        *([] if agreement is None else [("same top-1", f"{agreement:.2%}")]),
        *_written(result),
        ("use", usage.get(result["format"], Verbatim(f"--ckpt {shlex.quote(out)}"))),
    ]
    snippet = result.get("snippet")
    return pairs(rows) + (f"\nin Python (pip install onnxruntime pillow):\n\n{snippet}" if snippet else "")


def _written(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about the file, or about the folder and its files."""
    where, files = f"{result['format']}: {result['out']}", files_text(result["files"])
    if list(result["files"]) == [Path(result["out"]).name]:
        return [("written", Verbatim(f"{where} {files.removeprefix(Path(result['out']).name + ' ')}"))]
    return [("written", Verbatim(where)), ("files", files)]


def _snippet(out: str, exported: Weights, preprocessing: Preprocessing) -> str:
    has_classes, has_names = exported.architecture.num_classes > 0, bool(exported.class_names)
    kind = "classes"
    if has_classes and target_of(exported.metadata):
        kind = "number"
    elif has_names and several_labels_of(exported.metadata, exported.architecture.num_classes):
        kind = "several"
    belief = belief_of(exported.metadata, exported.architecture.num_classes) if kind == "classes" else None
    about = {"has_classes": has_classes, "has_names": has_names, "has_temperature": belief is not None}
    return onnx_snippet(out, preprocessing, kind=kind, **about)


def files_text(files: dict[str, int]) -> str:
    """Return names and sizes on one line."""
    sizes = {name: f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.1f} kB" for name, n in files.items()}
    return ", ".join(f"{name} ({size})" for name, size in sizes.items())


def _check_out(target: Path, format: str, overwrite: bool) -> None:
    """Refuse, before any work, a path whose files would be lost."""
    if format != "timm":
        for file in (target, *onnx.data_files(target)):
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


def _open_images(images: Sequence[str], progress: Progress) -> Split:
    if not images:
        return DataSet("demo").open(f"test[:{NUM_DEMO_IMAGES}]")
    files = find_images(images, where="--images")
    for line in files.lines:
        progress.note(line)
    if len(files) > MAX_IMAGES:
        progress.note(f"comparing on the first {MAX_IMAGES} of {len(files)} images")
    return files.part(0, min(MAX_IMAGES, len(files)), name=files.name)


def _preprocessing(weights: Weights, image_size: tuple[int, int] | None) -> tuple[Preprocessing, str]:
    """Return the preprocessing that `vit evaluate` takes for these weights, and where it comes from."""
    shorthands = {"data.image_size": "{}x{}".format(*image_size)} if image_size else {}
    request = RecipeRequest(shorthands=shorthands)
    return preprocessing_for(weights, request.load(), request)


def _network(
    weights: Weights, preprocessing: Preprocessing, *, head: bool
) -> tuple[nn.Module, Weights, list[str]]:
    """Return the network at the size of the preprocessing, its weights, and notes on what was changed."""
    model, arch, report = load(weights, image_size=preprocessing.image_size, num_classes=None if head else 0)
    exported = replace(
        weights,
        state=model.eval().state_dict(),
        architecture=arch,
        preprocessing=preprocessing.as_dict(),
        class_names=weights.class_names if head else None,
        metadata=weights.metadata if head else formats.without_labels(weights.metadata),
    )
    return model, exported, [f"resampled: {', '.join(report.resampled)}"] if report.resampled else []


def _check_outputs(
    format: str,
    path: Path,
    model: nn.Module,
    arch: Architecture,
    split: Split,
    preprocessing: Preprocessing,
    progress: Progress,
) -> Agreement:
    """Compare the outputs of the exported files with the network's; CheckFailed where they differ."""
    # Load the images once, for both networks
    settings = {"batch_size": BATCH_SIZE, "on_bad_image": "error", "num_threads": loader.default_threads(1)}
    batches = list(loader.eval_batches(split, preprocessing, rank=0, world_size=1, **settings))

    def outputs(model: nn.Module, title: str) -> Tensor:
        """Return outputs_NK of all images, computed on the CPU; WeightsError if one is not finite."""
        outputs_of_batches: list[Tensor] = []
        progress.begin(title, total=len(split))
        passes = outputs_of(model, iter(batches), preprocessing, torch.device("cpu"), "fp32")
        try:
            for _, outputs_BK in passes:
                outputs_of_batches.append(outputs_BK)
                progress.update(sum(map(len, outputs_of_batches)))
        finally:
            progress.end()
        return torch.cat(outputs_of_batches)

    def failure(problem: str) -> CheckFailed:
        reasons = "".join(f"; {caveat}" for caveat in formats.caveats(format, arch))
        return CheckFailed(
            f"the outputs of the exported {format} {problem}{reasons}",
            where=f"--to {format}, {arch.name}",
            fix="nothing was kept; export to another format, such as safetensors, and please report it",
        )

    # Compare the network with the one that is read back
    outputs_NK = outputs(model, "checkpoint")
    exported = formats.read_back(format, path)
    try:
        exported_NK = outputs(exported, "export")
    except WeightsError as error:
        raise failure("are not finite numbers") from error
    agreement = compare(outputs_NK, exported_NK, are_logits=arch.num_classes > 0)
    if agreement.max_rel_difference > TOLERANCE:
        difference = f"{agreement.max_difference:.2g}, relative {agreement.max_rel_difference:.2g}"
        raise failure(f"differ by {difference}; the tolerance is {TOLERANCE:g}")
    return agreement


def compare(outputs_NK: Tensor, exported_NK: Tensor, *, are_logits: bool) -> Agreement:
    """Return the agreement of finite outputs."""
    is_same_class_N = outputs_NK.argmax(1) == exported_NK.argmax(1)
    return Agreement(
        max_difference=float((exported_NK - outputs_NK).abs().max()),
        max_output=float(outputs_NK.abs().max()),
        top1=float(is_same_class_N.float().mean()) if are_logits else None,
    )


@contextmanager
def _temporary_folder(target: Path) -> Iterator[Path]:
    """Make a folder beside `target`, and delete it with all that is still in it."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_debris(target)
        folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{TEMPORARY}{target.name}-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        fix = "free some space, or choose another folder"
        raise MachineError(f"{target.name} was not written: {error}", where=str(target), fix=fix) from error


def _files_at(path: Path) -> list[Path]:
    """Return the files in a folder, or a file and those beside it."""
    return sorted(path.iterdir() if path.is_dir() else path.parent.glob("*"))


def _put_in_place(path: Path, target: Path) -> None:
    """Move the files to OUT; what they replace is deleted only once they are on disk."""
    for file in _files_at(path):
        sync(file)
    if path.is_dir():
        if target.exists():
            os.rename(target, _moved_aside(target))
        try:
            os.rename(path, target)
        except BaseException:
            _bring_back(target)
            raise
    else:
        names = [file.name for file in _files_at(path)]
        for name in reversed(names):  # the weights of an .onnx file are on disk before it names them
            os.replace(path.with_name(name), target.with_name(name))
            sync(target.parent)
        for earlier in onnx.data_files(target):
            if earlier.name not in names:
                earlier.unlink()
    sync(target.parent)
    _bring_back(target)


def _moved_aside(target: Path) -> Path:
    return target.with_name(f"{TEMPORARY}{target.name}.replaced")


def _bring_back(target: Path) -> None:
    """Move an earlier folder back that was to be replaced and was not; delete it where it was."""
    with suppress(OSError):  # the next export does it
        if not target.exists():
            os.rename(_moved_aside(target), target)
        else:
            shutil.rmtree(_moved_aside(target), ignore_errors=True)
