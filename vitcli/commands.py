"""The commands as functions: `vitcli.finetune("demo", "photos/", lr=0.01)`.

A parameter is the option of its name, so `vit finetune --help` describes them all, and the result is the
object of `--json`; each raises VitError as the command fails, with its three lines. A value that the command
line takes as a list may be a list here: `lr=[0.01, 0.03]`. What is of a process and not of a call (several
processes, printing) is left to the command line.
"""

import json
import os
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any, Literal, TypeVar

from vitcli.cli import app, end_of_command, options
from vitcli.errors import VitError
from vitcli.output import plots
from vitcli.results import (
    EvaluationResult,
    ExportResult,
    FeaturesResult,
    FewshotResult,
    InspectionResult,
    PredictionResult,
    Result,
    TrainingResult,
)

Name = str | PathLike[str]
Names = Name | Sequence[Name]
Size = int | tuple[int, int] | str
Keys = Mapping[str, Any]
Kind = TypeVar("Kind", bound=Result)
POSITIONAL = {"predict": ("images",), "export": ("ckpt", "out")}
REPEATED = ("ckpt", "dataset", "images", "calibrate")  # once per value; others take a list with commas
ON = ("head", "logits")  # by default: `--no-head` is what is written


# parameters: the options of the command
def finetune(
    ckpt: Name | None = None,
    dataset: Name | None = None,
    *,
    recipe: Name | None = None,
    set: Keys | None = None,
    res: Size | None = None,
    model: str | None = None,
    keep_head: bool = False,
    steps: int | None = None,
    epochs: float | None = None,
    max_time: str | None = None,
    batch_size: int | None = None,
    lr: float | Sequence[float] | None = None,
    folds: int | None = None,
    seed: int | None = None,
    runs: int | None = None,
    skip_bad: bool = False,
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None,
    device: str | None = None,
    compile: bool | None = None,
    per_device_batch: int | Literal["auto"] | None = None,
    workers: int | None = None,
    exact: bool = False,
    track: str | None = None,
    profile: bool = False,
    out: Name | None = None,
    overwrite: bool = False,
    dry_run: bool = False,
    quiet: bool = False,
) -> TrainingResult:
    """Fine-tune a checkpoint on images (paper, section 3.2); the same call resumes or repeats nothing.

        result = vitcli.finetune("demo", "photos/", epochs=10, out="runs/photos")
        result.top1, result.run_dir

    Args:
        ckpt: what `--ckpt` takes; default: the embedded demo.
        dataset: a folder of class folders, or what else `--dataset` takes.
        set: further recipe keys, {"train.patience": 3}.
        res: image size in pixels, one side or (height, width).
        lr: base learning rate; of several the best on the dev split is chosen.
        max_time: such as "30m".
        out: the run folder; an unfinished run in it is resumed.
    """
    return _run(TrainingResult, "finetune", locals())


# parameters: the options of the command
def evaluate(
    ckpt: Names,
    dataset: Names | None = None,
    *,
    recipe: Name | None = None,
    set: Keys | None = None,
    split: str = "auto",
    res: Size | None = None,
    model: str | None = None,
    real: Name | None = None,
    real_index: str | None = None,
    classes: Name | None = None,
    all_compete: bool = False,
    tta: bool = False,
    skip_bad: bool = False,
    batch_size: int | None = None,
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None,
    device: str | None = None,
    workers: int | None = None,
    part_rows: int | None = None,
    save_predictions: Name | None = None,
    profile: bool = False,
    out: Name | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> EvaluationResult:
    """Score checkpoints on data sets, each example once.

        vitcli.evaluate("runs/photos", out="evaluation").figures["reliability"]

    Args:
        ckpt: one or several; every one is scored on every data set.
        dataset: default: the images that the run held out.
        res: image size in pixels, or a range such as "160:384:32".
        out: a folder; then the result has the figures that are drawn into it.
    """
    return _run(EvaluationResult, "evaluate", locals())


# parameters: the options of the command
def predict(
    images: Names,
    *,
    ckpt: Name,
    set: Keys | None = None,
    res: Size | None = None,
    model: str | None = None,
    topk: int | None = None,
    threshold: float | None = None,
    tta: bool = False,
    every: int | None = None,
    skip_bad: bool = False,
    batch_size: int | None = None,
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None,
    device: str | None = None,
    workers: int | None = None,
    why: Name | None = None,
    sort_into: Name | None = None,
    out: Name | None = None,
    part_rows: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> PredictionResult:
    """Predict the classes of images, preprocessed as in evaluation.

        for prediction in vitcli.predict("holiday/", ckpt="runs/photos").predictions:
            print(prediction["file"], prediction["top"][0]["class"])

    Args:
        images: files, folders and globs; or videos.
        why: a page to write, .html, with the reasons of each answer.
        out: a .csv, .jsonl or .html to write; a folder with `part_rows`.

    Raises:
        VitError: as the command fails; `error.result` has the predictions of the images that could be read.
    """
    return _run(PredictionResult, "predict", locals())


# parameters: the options of the command
def fewshot(
    ckpt: Names | None = None,
    dataset: Name | None = None,
    *,
    recipe: Name | None = None,
    set: Keys | None = None,
    res: Size | None = None,
    model: str | None = None,
    shots: int | Sequence[int] | None = None,
    seeds: int | None = None,
    l2: float | Literal["sweep"] | None = None,
    classifier: Literal["least-squares", "knn", "logistic", "ncm"] | None = None,
    layer: Literal["pre_logits", "token", "gap"] | None = None,
    layers: str | Sequence[int] | None = None,
    draws: Name | None = None,
    forecast: bool = False,
    skip_bad: bool = False,
    batch_size: int | None = None,
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None,
    device: str | None = None,
    workers: int | None = None,
    out: Name | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> FewshotResult:
    """Score frozen features with few images per class (paper, section 4.1), or compare checkpoints.

        vitcli.fewshot("vit_b16.npz", "photos/", shots=[1, 5])["shots"]

    Args:
        ckpt: several are compared on all training images.
        shots: images per class.
        layers: "all", "last" or numbers of layers to compare.
    """
    return _run(FewshotResult, "fewshot", locals())


# parameters: the options of the command
def embed(
    ckpt: Name,
    dataset: Name,
    *,
    out: Name,
    recipe: Name | None = None,
    set: Keys | None = None,
    split: str = "auto",
    res: Size | None = None,
    model: str | None = None,
    layer: Literal["pre_logits", "token", "gap"] | None = None,
    logits: bool = True,
    skip_bad: bool = False,
    batch_size: int | None = None,
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None,
    device: str | None = None,
    workers: int | None = None,
    part_rows: int | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> FeaturesResult:
    """Save the features of a split to a .safetensors file.

    features_ND = vitcli.embed("vit_b16.npz", "photos/", out="photos.safetensors").load()["features"]
    """
    return _run(FeaturesResult, "embed", locals())


# parameters: the options of the command
def export(
    ckpt: Name,
    out: Name | None = None,
    *,
    to: Literal["timm", "onnx", "pt2", "pte", "npz", "safetensors"] | None = None,
    input: Literal["images", "pixels"] = "images",
    precision: Literal["fp32", "fp16", "int8", "int8-weights"] = "fp32",
    head: bool = True,
    names: Literal["published", "linen", "big_vision"] = "published",
    res: Size | None = None,
    model: str | None = None,
    images: Names | None = None,
    calibrate: Names | None = None,
    gate: Name | None = None,
    split: str | None = None,
    max_drop: float | None = None,
    fastest: bool = False,
    budget: str | None = None,
    student: Names | None = None,
    push_to_hub: str | None = None,
    private: bool = False,
    revision: str | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> ExportResult:
    """Convert a checkpoint: the file is read back and its outputs are compared before it takes its name.

        vitcli.export("runs/photos", "photos.onnx").path

    Args:
        out: a .onnx, .pt2, .pte, .npz or .safetensors file, or a folder for timm.
        max_drop: percentage points that may be lost, with `gate` or `fastest`.
        budget: the largest latency with `fastest`, such as "10ms".
    """
    return _run(ExportResult, "export", locals())


# parameters: the options of the command
def inspect(
    ckpt: Name | None = None,
    *,
    images: Names | None = None,
    dataset: Name | None = None,
    recipe: Name | None = None,
    set: Keys | None = None,
    split: str = "auto",
    res: Size | None = None,
    model: str | None = None,
    compare: Name | None = None,
    compare_res: Size | None = None,
    summary: bool = False,
    skip_bad: bool = False,
    batch_size: int | None = None,
    precision: Literal["auto", "fp32", "bf16", "fp16"] | None = None,
    device: str | None = None,
    workers: int | None = None,
    out: Name | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> InspectionResult:
    """Draw filters, position embeddings and attention: the paper's Figures 6, 7, 10, 11 and 14.

    vitcli.inspect("vit_b16.npz", images="photos/").figures["attention_distance"]
    """
    return _run(InspectionResult, "inspect", locals())


def _run(kind: type[Kind], command: str, given: dict[str, Any]) -> Kind:
    """Run a command in this process, and return what it would print and the figures that it draws."""
    arguments = _command_line(command, given)
    environment = dict(os.environ)  # where the device of a call is kept
    with options.results_kept(arguments) as shown, plots.figures_kept() as figures:
        try:
            app.app(args=arguments, prog_name="vit", standalone_mode=False)
        except end_of_command.UsageError as error:
            raise end_of_command.usage_error(error, arguments) from error
        except VitError as error:
            if shown:
                error.result = kind(*shown[0], figures)
            raise
        finally:
            os.environ.clear()
            os.environ.update(environment)
    return kind(*shown[0], figures)


def _command_line(command: str, given: Mapping[str, Any]) -> list[str]:
    """Return the words of the same call of `vit`."""
    words, in_front = [command], []
    for name, value in given.items():
        word = name.replace("_", "-")
        if name in POSITIONAL.get(command, ()):
            in_front += _values(name, value)
        elif value is (name not in ON):
            words.append(f"--{word if value else f'no-{word}'}")
        elif not isinstance(value, bool):
            words += [f"--{word}={each}" for each in _values(name, value)]
    return [*words, "--", *in_front] if in_front else words


def _values(name: str, value: Any) -> list[str]:
    """Return the values of an option: one for each time it is given."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [f"{key}={each if isinstance(each, str) else json.dumps(each)}" for key, each in value.items()]
    if isinstance(value, tuple) and name.endswith("res"):
        return ["x".join(map(str, value))]
    if isinstance(value, str | PathLike) or not isinstance(value, Sequence):
        return [fspath(value) if isinstance(value, PathLike) else str(value)]
    return list(map(str, value)) if name in REPEATED else [",".join(map(str, value))]
