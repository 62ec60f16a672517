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

from torch import Tensor, nn

from vitcli.conversion import comparison, golden
from vitcli.conversion.comparison import Agreement, NotFinite
from vitcli.conversion.images import (
    Images,
    images_for_scales,
    open_for_scales,
    open_images,
    open_labelled,
    open_named,
)
from vitcli.conversion.markdown import rendered
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import CheckFailed, MachineError, VitError
from vitcli.evaluation.calibration.stored import calibration_of
from vitcli.evaluation.multilabel import multilabel_of
from vitcli.evaluation.regression import target_of
from vitcli.evaluation.setup import preprocessing_for
from vitcli.models.architecture import Architecture
from vitcli.output.atomic import TEMPORARY, check_out, remove_debris, sync
from vitcli.output.progress import Progress
from vitcli.output.text import Verbatim, count_of, model_text, pairs, size_text
from vitcli.recipe import load_for_inference
from vitcli.weights import formats, onnx
from vitcli.weights.authors_npz import SPELLINGS
from vitcli.weights.io import Weights, read_weights
from vitcli.weights.load import load
from vitcli.weights.production.program import INPUTS, PRECISIONS, ProgramForm
from vitcli.weights.production.session import RUNTIMES, load_runtime

TOLERANCE = 1e-4  # of the largest output in fp32: a hybrid in timm is 5e-5 away, another GELU 7e-5 to 7e-4
INPUT_TEXT = {
    "images": "uint8 (B, height, width, 3) of any size",
    "pixels": "uint8 (B, height, width, 3) of the size of the network",
}
HEADS = {"features": "none, features only", "number": "a number"}  # by the kind of the outputs
IN_A_TIMM_FOLDER = {"config.json", "model.safetensors", "pytorch_model.bin"}


@dataclass(frozen=True)
class ExportOptions:
    """Options of `vit export`.

    Attributes:
        to: one of `formats.SUFFIXES`; None takes the format of OUT's suffix.
        model_name: of a checkpoint that does not name its architecture.
        image_size: height and width in pixels; position embeddings are resampled as in the paper.
        head: False exports the features.
        names: one of `authors_npz.SPELLINGS`, for "npz".
        images: files, folders and globs to compare on; none means images of the gate, else those that the run
            of the checkpoint held out, else the demo's.
        input, precision: of a file that takes images, see `program.ProgramForm`.
        calibrate: files, folders and globs of training images, for int8; none means those of the run.
        gate: data set on which the file may lose `max_drop` (a fraction) of the accuracy; None for no gate.
        split: of the gate.
    """

    to: str | None = None
    model_name: str | None = None
    image_size: tuple[int, int] | None = None
    head: bool = True
    names: str = SPELLINGS[0]
    images: Sequence[str] = ()
    input: str = INPUTS[0]
    precision: str = PRECISIONS[0]
    calibrate: Sequence[str] = ()
    gate: str | None = None
    split: str = "auto"
    max_drop: float = 0.005
    overwrite: bool = False


@dataclass(frozen=True)
class Export:
    """A network on its way into another format.

    Attributes:
        weights: as they leave, at the size and with the head of the export.
        form: of a file that takes images; its kind is that of the outputs of any.
        gate_split: labelled images of the gate, if there is one.
        origin: where the preprocessing comes from, in words.
    """

    format: str
    model: nn.Module
    weights: Weights
    preprocessing: Preprocessing
    form: ProgramForm
    images: Images
    gate_split: Split | None
    options: ExportOptions
    origin: str = ""
    notes: tuple[str, ...] = ()

    @property
    def arch(self) -> Architecture:
        return self.weights.architecture

    def write(self, path: Path, samples: Iterator[Tensor], *, fp32: Path | None = None) -> None:
        """Write the file or folder; `samples` and `fp32` as `formats.write` takes them."""
        formats.write(
            self.format, path, self.model, self.weights, names=self.options.names, form=self.form,
            calibration=samples, fp32=fp32,
        )  # fmt: skip


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
    format = check_target(options, target)
    images = open_named(options.images, progress) if options.images else None
    # Load the network
    weights = read_weights(ckpt, model_name=options.model_name, quiet=quiet)
    gate_split = open_labelled(options.gate, options.split, weights) if options.gate else None
    images = images or open_images(weights, gate_split, progress, precision=options.precision)
    prepared = prepare(weights, format, options, images, gate_split)
    summary = f"{prepared.preprocessing.summary()}, {prepared.origin}"
    progress.note(f"{prepared.arch.name} ({weights.numerics}) to {format}: {summary}")
    if format == "pte":
        progress.note("lowered by ExecuTorch, which takes a minute or more")
    samples = _samples(prepared, progress)
    # Write, compare, and only then replace OUT
    with temporary_folder(target) as folder:
        path = folder / target.name
        prepared.write(path, samples)
        facts = finish(prepared, path, out, progress)
        put_in_place(path, target)
    return result_of(prepared, weights, out, facts, progress) | {"elapsed_s": time.perf_counter() - began_at}


def prepare(
    weights: Weights, format: str, options: ExportOptions, images: Images, gate_split: Split | None = None
) -> Export:
    """Return the export of weights at the size and in the precision of the options."""
    preprocessing, origin = preprocessing_of(weights, options.image_size)
    model, exported, notes = _network(weights, preprocessing, head=options.head)
    arch = exported.architecture
    formats.check_supported(format, arch)
    form = _program_form(exported, preprocessing, options)
    notes = (*notes, *formats.caveats(format, arch))
    return Export(format, model, exported, preprocessing, form, images, gate_split, options, origin, notes)


def finish(export: Export, path: Path, out: str, progress: Progress) -> dict[str, Any]:
    """Read a file back that was written, compare it, and write its golden file; return what is known of it.

    Raises:
        CheckFailed: it gives other outputs, or the gate does not accept it.
    """
    options, read_back = export.options, formats.read_back(export.format, path, export.form)
    try:
        facts = _compared(export, read_back, progress)
    except NotFinite as error:
        raise failure("are not finite numbers", export) from error
    if export.format in formats.FROM_IMAGES:
        facts |= {"input": options.input, "precision": options.precision}
        facts["speed"] = comparison.measured(read_back, export.model, export.preprocessing)
    if export.format == "onnx":
        facts["opset"], names = onnx.OPSET, export.weights.class_names
        facts["snippet"] = rendered("onnx_snippet.py.j2", path=out, form=export.form, names=names)
        if options.precision == "int8":
            facts["fp32_layers"] = onnx.fp32_layers(path)
    if path.suffix in RUNTIMES:
        golden.write_golden(path, export.images.to_publish, export.preprocessing, precision=options.precision)
    return facts | {"files": {file.name: file.stat().st_size for file in _files_at(path)}}


def result_of(
    export: Export, weights: Weights, out: str, facts: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    """Return the object of --json, and note what its user has to know."""
    facts = dict(facts)
    notes = [*export.notes, *facts.pop("notes")]
    if facts.pop("is_zero"):
        notes.append("every output is zero, as with a fresh head: their agreement proves little")
    for note in notes:
        progress.note(note)
    return {
        "command": "export",
        "ckpt": weights.source,
        "model": export.arch.name,
        "numerics": weights.numerics,
        "format": export.format,
        "out": out,
        "files": facts.pop("files"),
        "resolution": export.preprocessing.resolution,
        "preprocessing": export.preprocessing.summary(),
        "num_classes": export.arch.num_classes,
        "outputs": export.form.kind,
        "license": weights.licence,
        "images": list(export.options.images) or export.options.gate or export.images.split.name,
        "notes": notes,
        **facts,
    }


def _compared(export: Export, read_back: nn.Module, progress: Progress) -> dict[str, Any]:
    """Judge the outputs: in fp32 they are equal but for rounding; in other precisions images decide.

    Raises:
        CheckFailed: they differ in fp32, or the gate does not accept them.
        NotFinite: an output is not finite.
    """
    options, images, networks = export.options, export.images, (export.model, read_back)
    outputs_NK, exported_NK, labels_N = comparison.outputs_of_all(
        networks, images.split, export.preprocessing, progress, title="compare",
        on_bad_image="skip" if images.are_held_out else "error",
    )  # fmt: skip
    agreement = comparison.compare(outputs_NK, exported_NK, are_logits=export.form.kind == "classes")
    facts = {
        "num_images": agreement.num_images,
        "max_abs_difference": agreement.max_difference,
        "max_rel_difference": agreement.max_rel_difference,
        "top1_agreement": agreement.top1,
        "is_zero": not agreement.max_output,
        "notes": [],
    }
    if options.precision == "fp32":
        _check_agreement(agreement, export)
    elif not export.gate_split:
        has_classes = images.are_held_out and agreement.num_same is not None
        verdict = comparison.judge(outputs_NK, exported_NK, labels_N, max_drop=1.0) if has_classes else None
        facts["notes"].append(comparison.note_of(agreement, verdict, options.precision, images.split.name))
    if gate := export.gate_split:
        outputs = comparison.outputs_of_all(
            networks, gate, export.preprocessing, progress, title="gate", on_bad_image="error"
        )
        verdict = comparison.judge(*outputs, max_drop=options.max_drop)
        if not verdict.is_accepted:
            raise comparison.refuse(verdict)
        facts["notes"] += gate.notes
        facts["gate"] = {"dataset": options.gate, "split": gate.name, **verdict.as_json()}
    return facts


def as_text(result: dict[str, Any]) -> str:
    agreement, out, num_classes = result["top1_agreement"], result["out"], result["num_classes"]
    of_which = "" if isinstance(result["images"], list) else f" of {result['images']}"
    usage = {
        "timm": Verbatim(f'timm.create_model("local-dir:{out}", pretrained=True)'),
        "onnx": f'"images", {INPUT_TEXT[result.get("input", "images")]}',
        "pt2": Verbatim(f"torch.export.load({out!r}).module()(images)"),
        "pte": Verbatim(f"executorch.runtime.Runtime.get().load_program({out!r}).load_method('forward')"),
    }
    command, takes = ("predict", "IMAGES") if num_classes else ("finetune", "--dataset DATA")
    gate = ""
    if verdict := result.get("gate"):
        images = count_of(verdict["num_images"], "image")
        gate = f"{verdict['top1_exported']:.2%} of {images}, the checkpoint {verdict['top1_checkpoint']:.2%}"
        gate += f"; at most {verdict['highest_drop']:.2%} lost ({100 * verdict['confidence']:g} %)"
    rows = [
        ("model", f"{model_text(result)}; {size_text(result['resolution'])} px"),
        ("pixels", result["preprocessing"]),
        ("head", HEADS.get(result["outputs"]) or count_of(num_classes, "class", "classes")),
        ("compared on", f"{count_of(result['num_images'], 'image')}{of_which}"),
        ("difference", f"{result['max_abs_difference']:.2g}, relative {result['max_rel_difference']:.2g}"),
        *([] if agreement is None else [("same top-1", f"{agreement:.2%}")]),
        *([("gate", gate)] if gate else []),
        *([("in fp32", ", ".join(result["fp32_layers"]))] if result.get("fp32_layers") else []),
        *([("speed", comparison.speed_text(result["speed"]))] if "speed" in result else []),
        *_written(result),
        ("use", usage.get(result["format"], Verbatim(f"vit {command} --ckpt {shlex.quote(out)} {takes}"))),
    ]
    snippet = result.get("snippet")
    return pairs(rows) + (f"\nin Python (pip install onnxruntime pillow):\n\n{snippet}" if snippet else "")


def _written(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows about the file, or about the folder and its files."""
    where, files = f"{result['format']}: {result['out']}", files_text(result["files"])
    if list(result["files"]) == [Path(result["out"]).name]:
        return [("written", Verbatim(f"{where} {files.removeprefix(Path(result['out']).name + ' ')}"))]
    return [("written", Verbatim(where)), ("files", files)]


def _program_form(exported: Weights, preprocessing: Preprocessing, options: ExportOptions) -> ProgramForm:
    """Return what a file from images takes and gives."""
    kind, of_kind = "classes", {}
    num_classes = exported.architecture.num_classes
    if not num_classes:
        kind = "features"
    elif target := target_of(exported.metadata):
        kind, of_kind = "number", {"mean": target.mean, "std": target.std}
    elif exported.class_names and multilabel_of(exported.metadata, num_classes):
        kind = "multilabel"
    elif stored := calibration_of(exported.metadata, num_classes):
        of_kind = {"scaled": stored.scaling.scaled}
    return ProgramForm(preprocessing, kind, **of_kind, input=options.input, precision=options.precision)


def _samples(export: Export, progress: Progress) -> Iterator[Tensor]:
    """Return calibration images for int8 quantization."""
    if export.options.precision != "int8":
        return iter(())
    judged = export.gate_split or (export.images.split if export.images.are_held_out else None)
    split = open_for_scales(export.weights, export.options.calibrate, judged)
    progress.note(f"int8 calibration: {count_of(len(split), 'image')} of {split.name}")
    return images_for_scales(split, export.form)


def files_text(files: dict[str, int]) -> str:
    """Return names and sizes on one line."""
    sizes = {name: f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.1f} kB" for name, n in files.items()}
    return ", ".join(f"{name} ({size})" for name, size in sizes.items())


def check_target(options: ExportOptions, target: Path) -> str:
    """Return the format of OUT; refuse, before any work, what cannot be written there."""
    format = formats.format_of(options.to, target, names=options.names)
    _bring_back(target)
    # Options without effect, a path whose files would be lost, and what is not installed
    for_onnx = {"--input": options.input, "--precision": options.precision}
    changed = [name for name, value in for_onnx.items() if value not in (INPUTS[0], PRECISIONS[0])]
    allowed = {"onnx": ("--input", "--precision"), "pt2": ("--input",), "pte": ("--input",)}.get(format, ())
    if wrong := [name for name in changed if name not in allowed]:
        raise VitError(f"it is for ONNX files, and not for {format}", where=wrong[0], fix="leave it out")
    if format == "pte" and options.input != "pixels":
        problem = "a .pte file does not resize images: ExecuTorch plans memory for one size"
        raise VitError(problem, where="--input", fix="add --input pixels, and resize where you decode")
    if options.calibrate and options.precision != "int8":
        raise VitError("only int8 is calibrated", where="--calibrate", fix="add --precision int8")
    if options.gate and not options.head:
        raise VitError("features have no accuracy", where="--gate and --no-head", fix="leave one of them out")
    overwrite, fix = options.overwrite, "choose another name"
    if format == "timm" and target.is_file():
        raise VitError(f"{target} is a file", where="OUT", fix=fix)
    if format == "timm":
        inside = {path.name for path in target.iterdir()} if target.is_dir() else set()
        if inside - IN_A_TIMM_FOLDER:
            raise VitError(
                f"{target} holds more than a timm folder does, such as {min(inside - IN_A_TIMM_FOLDER)}",
                where="OUT",
                fix=f"{fix}; it would be deleted, which --overwrite does not do either",
            )
        if inside and not overwrite:
            fix += ", or replace it with --overwrite"
            raise VitError(f"{target} already exists", where="OUT", fix=fix)
        return format
    beside = (golden.golden_path(target), *onnx.data_files(target)) if target.suffix in RUNTIMES else ()
    for file in (target, *beside):
        check_out(file, overwrite=overwrite, option="OUT", folder_error=VitError)
    if format == "onnx":
        onnx.check_installed()
    if format == "pte":
        load_runtime("executorch")
    return format


def preprocessing_of(weights: Weights, image_size: tuple[int, int] | None) -> tuple[Preprocessing, str]:
    """Return the preprocessing that an export of weights at this size, or their own, has, and its origin."""
    shorthands = {"data.image_size": "{}x{}".format(*image_size)} if image_size else {}
    return preprocessing_for(weights, load_for_inference(None, (), shorthands))


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


def _check_agreement(agreement: Agreement, export: Export) -> None:
    """Refuse outputs in fp32 that differ by more than rounding does."""
    if agreement.max_rel_difference > TOLERANCE:
        difference = f"{agreement.max_difference:.2g}, relative {agreement.max_rel_difference:.2g}"
        raise failure(f"differ by {difference}; the tolerance is {TOLERANCE:g}", export)


def failure(problem: str, export: Export) -> CheckFailed:
    """Return the error for a file with other outputs than the network."""
    reasons = "".join(f"; {caveat}" for caveat in formats.caveats(export.format, export.arch))
    return CheckFailed(
        f"the outputs of the exported {export.format} {problem}{reasons}",
        where=f"--to {export.format}, {export.arch.name}",
        fix="nothing was kept; export to another format, such as safetensors, and please report it",
    )


@contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
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


def front_path(path: Path) -> Path:
    """Return the figure of the front beside a file of --fastest."""
    return path.with_name(f"{path.stem}.front.svg")


def put_in_place(path: Path, target: Path) -> None:
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
        for earlier in (*onnx.data_files(target), front_path(target)) if target.suffix == ".onnx" else ():
            if earlier.name not in names:
                earlier.unlink(missing_ok=True)
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
