"""`vit models`, `vit interpolate-posemb` and `vit export`: the commands about networks and weights files."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import typer

from vitcli.cli import complete, inputs, options
from vitcli.cli.help import DATA, MANAGE, MODEL, RUN, USE
from vitcli.cli.options import SIZE_HELP, Printing, command, height_and_width, load_libraries, option

app = typer.Typer()

# fmt: off
CkptArgument = Annotated[str, typer.Argument(metavar="CKPT",
    help="Anything that --ckpt takes: a file, a run folder, timm/NAME.TAG.")]
ModelName = Annotated[str | None, option("--model", MODEL,
    "Architecture: the paper's name or any timm model (default: as the file says).", "NAME",
    autocompletion=complete.models)]
ImageSize = Annotated[str | None, option("--res", DATA,
    f"{SIZE_HELP} (default: the checkpoint's).", "PX")]
# fmt: on


@command(app, panel=MANAGE, example="vit models 'R50*' --res 384")
def models(
    *,
    pattern: Annotated[str | None, typer.Argument(metavar="PATTERN",
        help="Name, part of a name, or glob such as 'BiT*' (default: all).")] = None,
    res: Annotated[str | None, option("--res", DATA, f"{SIZE_HELP} (default: 224).", "PX")] = None,
    format: Annotated[Literal["table", "markdown"], option("--format", RUN,
        "table or markdown (default: table).", "NAME")] = "table",
    weights: Annotated[bool, option("--weights", MODEL,
        "List the weights that --ckpt takes by name: pre-training, size, and whether they are here. With "
        "PATTERN also of timm's other networks.")] = False,
    pretrained: Annotated[bool, option("--pretrained", MODEL,
        "List timm's weights of the ViT family, with parameters, resolution, pre-training data and licence: "
        "by family, or those of PATTERN, such as DINOv3 or 'vit_small*'.")] = False,
    printing: Printing,
) -> int:  # fmt: skip
    """List the networks of the paper's tables, or known weights, also timm's of the ViT family.

    With their parameters, GMACs and tokens at a resolution.
    """
    if pretrained:
        for name, is_given in (("--res", res is not None), ("--weights", weights)):
            if is_given:
                what = "it lists weights at their own size; choose one of the two options"
                raise typer.BadParameter(what, param_hint=f"{name} with --pretrained")
    if weights and res is not None:
        raise typer.BadParameter("weights have their own size", param_hint="--res with --weights")
    if weights or pretrained:
        from vitcli.weights import catalog  # loads timm for --pretrained only if it is not the table's

        known = catalog.list_pretrained(pattern) if pretrained else catalog.list_weights(pattern)
        return printing.show(known, catalog.as_markdown if format == "markdown" else catalog.as_table)
    image_size = height_and_width(res) or (224, 224)
    load_libraries()
    from vitcli.models import listing

    networks = listing.list_models(pattern, image_size=image_size)
    return printing.show(networks, listing.as_markdown if format == "markdown" else listing.as_table)


@command(app, panel=MANAGE, example="vit interpolate-posemb vit_b16.npz vit_b16_384.safetensors --res 384")
def interpolate_posemb(
    *,
    ckpt: CkptArgument,
    out: Annotated[str, typer.Argument(metavar="OUT", help="A .safetensors file, or an official .npz.")],
    res: ImageSize = None,
    method: Annotated[Literal["paper", "timm"], option("--method", MODEL,
        "paper: bilinear with aligned corners; timm: bicubic with antialiasing (default: paper).",
        "NAME")] = "paper",
    patch_size: Annotated[int | None, option("--patch-size", MODEL,
        "Also resize the patch embedding, to patches of this many pixels (FlexiViT; default: keep it).", "PX",
        min=1)] = None,
    model: ModelName = None,
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> int:  # fmt: skip
    """Resample the position embedding of a checkpoint.

    For another resolution, as in the paper, section 3.2.
    """
    image_size = height_and_width(res)
    inputs.check_ckpt(ckpt, "CKPT")
    load_libraries()
    from vitcli.weights.interpolate import as_text, interpolate_posemb

    result = interpolate_posemb(
        ckpt,
        out,
        image_size=image_size,
        method=method,
        patch_size=patch_size,
        model_name=model,
        overwrite=overwrite,
        quiet=printing.quiet,
    )
    return printing.show(result, as_text)


# fmt: off
@dataclass(frozen=True)
class ConversionOptions:
    """Options of `vit export`."""

    ckpt: Annotated[str | None, typer.Argument(metavar="CKPT",
        help="Anything that --ckpt takes: a file, a run folder, timm/NAME.TAG.")] = None
    out: Annotated[str | None, typer.Argument(metavar="OUT",
        help="A .onnx, .pt2, .pte, .npz or .safetensors file, or a folder for timm.")] = None
    res: ImageSize = None
    images: Annotated[list[str] | None, option("--images", DATA,
        "Images to compare the outputs on: a file, folder or glob (default: those of --gate, else those that "
        "the run held out, else the demo's). Repeatable.", "IMAGES")] = None
    gate: Annotated[str | None, option("--gate", DATA,
        "Keep the file only if it loses no more accuracy on this data set than --max-drop, shown with 95 % "
        "confidence by a paired test (default: no such test).", "DATA",
        autocompletion=complete.datasets)] = None
    split: Annotated[str | None, option("--split", DATA,
        "Split of --gate (default: the one that vit evaluate takes).", "NAME")] = None
    max_drop: Annotated[float | None, option("--max-drop", DATA,
        "Largest accuracy drop that --gate accepts, in percentage points (default: 0.5; of --fastest 1).",
        "POINTS", min=0, max=100)] = None
    calibrate: Annotated[list[str] | None, option("--calibrate", DATA,
        "Calibration images for int8 quantization: a file, folder or glob (default: those of the run). "
        "Repeatable.", "IMAGES")] = None
    fastest: Annotated[bool, option("--fastest", MODEL,
        "Try other precisions, smaller images, fewer blocks and students, and keep the fastest ONNX file "
        "that loses no more accuracy than --max-drop on --gate or on images that the run held out.")] = False
    budget: Annotated[str | None, option("--budget", MODEL,
        "With --fastest: the largest latency of one image, such as 10ms or 0.5s (default: any).",
        "TIME")] = None
    student: Annotated[list[str] | None, option("--student", MODEL,
        "With --fastest: a checkpoint of the same classes that is a candidate (default: those beside "
        "CKPT that were distilled from it). Repeatable.", "CKPT", autocompletion=complete.ckpts)] = None
    to: Annotated[Literal["timm", "onnx", "pt2", "pte", "npz", "safetensors"] | None, option("--to", MODEL,
        "timm, onnx, pt2, pte, npz or safetensors (default: by the suffix of OUT).", "FORMAT")] = None
    input: Annotated[Literal["images", "pixels"], option("--input", MODEL,
        "What a .onnx, .pt2 or .pte file takes, as bytes: images of any size, which it resizes, or pixels of "
        "the network's size, as .pte must (default: images).", "KIND")] = "images"
    precision: Annotated[Literal["fp32", "fp16", "int8", "int8-weights"], option("--precision", MODEL,
        "Of an ONNX file: fp32, fp16, int8, or int8-weights, where only weights have 8 bits (default: fp32).",
        "NAME")] = "fp32"
    head: Annotated[bool, option("--head/--no-head", MODEL,
        "Export features only (default: with the classifier).")] = True
    names: Annotated[Literal["published", "linen", "big_vision"], option("--names", MODEL,
        "Array names of an .npz: published (as in the released files), linen or big_vision (default: "
        "published).", "NAMES")] = "published"
    model: ModelName = None
    push_to_hub: Annotated[str | None, option("--push-to-hub", RUN,
        "Upload to this repository of the Hugging Face Hub: the run folder CKPT with its card, with the ONNX "
        "file OUT, or the folder OUT (default: upload nothing).", "OWNER/NAME")] = None
    private: Annotated[bool, option("--private", RUN,
        "With --push-to-hub: make a new repository private.")] = False
    revision: Annotated[str | None, option("--revision", RUN,
        "With --push-to-hub: branch, created if it does not exist (default: the main branch).",
        "BRANCH")] = None
    check_file: Annotated[str | None, option("--check", RUN,
        "Verify an ONNX or .pte file against its golden outputs; export nothing (default: export CKPT).",
        "FILE")] = None
    runtime: Annotated[Literal["onnxruntime", "openvino", "executorch"] | None, option("--runtime", RUN,
        "With --check: what runs the file, onnxruntime, openvino or executorch (default: onnxruntime, and of "
        "a .pte file executorch).", "NAME")] = None
    overwrite: options.Overwrite = False

    def besides_check(self) -> list[str]:
        """Return the names of what is given and has no effect with --check."""
        names = {"ckpt": "CKPT", "out": "OUT", "head": "--no-head"}
        others = (each for each in fields(self) if each.name not in ("check_file", "runtime"))
        given = [each.name for each in others if getattr(self, each.name) not in (each.default, [])]
        return [names.get(name, f"--{name.replace('_', '-')}") for name in given]

    def check(self) -> None:
        """Raise typer.BadParameter for options that need or exclude another."""
        if self.ckpt is None:
            raise typer.BadParameter("name a checkpoint, or --check FILE.onnx", param_hint="CKPT")
        if self.gate is None and (self.split, None if self.fastest else self.max_drop) != (None, None):
            raise typer.BadParameter("it belongs to --gate DATA", param_hint="--split, --max-drop")
        if not self.fastest and (self.budget is not None or self.student):
            raise typer.BadParameter("it belongs to --fastest", param_hint="--budget, --student")
        others = {"--precision": self.precision != "fp32", "--res": self.res, "--no-head": not self.head,
                  "--to": self.to not in (None, "onnx"), "--push-to-hub": self.push_to_hub}  # fmt: skip
        if self.fastest and (wrong := [name for name, is_given in others.items() if is_given]):
            raise typer.BadParameter(f"--fastest chooses the file: leave {wrong[0]} out", param_hint=wrong[0])
        if self.fastest and Path(self.out or "").suffix != ".onnx":
            raise typer.BadParameter("--fastest writes an ONNX file: end OUT in .onnx", param_hint="OUT")
        if self.fastest and self.max_drop == 0:
            what = "no number of images shows a drop of 0: allow some, such as 1"
            raise typer.BadParameter(what, param_hint="--fastest, --max-drop")
        if self.runtime is not None:
            raise typer.BadParameter("it belongs to --check FILE.onnx", param_hint="--runtime")
        if self.out is None and self.push_to_hub is None:
            raise typer.BadParameter("name OUT, or --push-to-hub OWNER/NAME", param_hint="OUT")
        if (self.private or self.revision is not None) and self.push_to_hub is None:
            raise typer.BadParameter("it belongs to --push-to-hub", param_hint="--private, --revision")

    def export_options(self):
        """Return the ExportOptions."""
        from vitcli.conversion.export import ExportOptions

        return ExportOptions(
            to=self.to, model_name=self.model, image_size=height_and_width(self.res), head=self.head,
            names=self.names, images=self.images or (), input=self.input, precision=self.precision,
            calibrate=self.calibrate or (), gate=self.gate, split=self.split or "auto",
            max_drop=((1 if self.fastest else 0.5) if self.max_drop is None else self.max_drop) / 100,
            overwrite=self.overwrite,
        )

# fmt: on


def milliseconds_of(text: str) -> float:
    """Return the milliseconds of 10ms or 0.5s; typer.BadParameter for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s)", text.strip())
    number = float(match[1]) * (1000 if match[2] == "s" else 1) if match else 0.0
    if not 0 < number < 1e6:
        raise typer.BadParameter(f"invalid latency {text!r}: use 10ms or 0.5s", param_hint="--budget")
    return number


@command(
    app,
    panel=USE,
    example="""\
vit export runs/photos photos.onnx
vit export runs/photos fast.onnx --fastest --max-drop 1
vit export runs/photos small.onnx --precision int8 --gate photos/
vit export --check photos.onnx
vit export runs/photos --push-to-hub OWNER/NAME""",
)
def export(*, asked: ConversionOptions, printing: Printing) -> int:
    """Convert a checkpoint, or upload it to the Hub.

    The new file is read back and its outputs are compared before it replaces OUT.
    """
    if asked.check_file is not None:
        if given := asked.besides_check():
            what = f"it checks a file alone; leave {', '.join(given)} out"
            raise typer.BadParameter(what, param_hint="--check")
        load_libraries()
        from vitcli.conversion import golden

        checked = golden.check(asked.check_file, runtime=asked.runtime)
        return printing.show(checked, golden.check_as_text)
    asked.check()
    inputs.check_ckpt(asked.ckpt, "CKPT")
    load_libraries()
    from vitcli.conversion import export as exports
    from vitcli.conversion import push as pushes

    export_options, quiet = asked.export_options(), printing.quiet
    if asked.fastest:
        from vitcli.conversion import fastest, fastest_text

        budget_ms = None if asked.budget is None else milliseconds_of(asked.budget)
        chosen = fastest.fastest(
            asked.ckpt,
            asked.out,
            export_options,
            budget_ms=budget_ms,
            students=asked.student or [],
            quiet=quiet,
        )
        return printing.show(chosen, fastest_text.as_text)
    if asked.push_to_hub is None:
        result = exports.export(asked.ckpt, asked.out, export_options, quiet=quiet)
        return printing.show(result, exports.as_text)
    result = pushes.push(
        asked.ckpt,
        asked.out,
        asked.push_to_hub,
        export_options,
        private=asked.private,
        branch=asked.revision,
        quiet=quiet,
    )
    return printing.show(result, pushes.as_text)
