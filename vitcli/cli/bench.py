"""`vit bench data`, `vit bench train` and `vit bench infer`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vitcli.cli import complete, inputs, options
from vitcli.cli.help import ADVANCED, DATA, DEVICES, MODEL, RUN, group
from vitcli.cli.options import Printing, command, count_or_auto, launch, option
from vitcli.errors import VitError

app = group(
    "Measure speed and memory here, against the machine's limit and timm.",
    "Examples:\nvit bench train --model ViT-B/16 --compare timm\nvit bench data --dataset photos/",
)
SYNTHETIC = "synthetic"
MODEL_NAME = "ViT-Ti/16"  # the default, so that a laptop has an answer in seconds

# fmt: off
Images = Annotated[str, option("--dataset", DATA,
    f"synthetic, images of noise that cost nothing to load; or: {options.DATA_HELP} (default: synthetic). "
    "[data.dataset]", "DATA", autocompletion=complete.datasets)]


@dataclass(frozen=True)
class LapOptions:
    """How long to measure and against whom, and the recipe whose work it is."""

    steps: Annotated[int | None, option("--steps", RUN,
        "Batches of a lap (default: as many as take two seconds).", "N", min=1)] = None
    repeats: Annotated[int, option("--repeats", RUN,
        "Laps of each side, in turn; the result is their median and range (default: 3).", "N", min=1)] = 3
    compare: Annotated[Literal["timm"] | None, option("--compare", RUN,
        "timm: also time timm's own loader, step or loop, alternating (default: none).",
        "PEER")] = None
    workers: options.Workers = None
    recipe: options.RecipeName = None
    set_: options.Set = None

    def bench_options(self, printing: Printing, **more: Any):
        """Return the BenchOptions of a benchmark."""
        from vitcli.bench.setup import BenchOptions

        return BenchOptions(
            steps=self.steps, repeats=self.repeats, compare=self.compare, workers=self.workers,
            quiet=printing.quiet, **more,
        )

    def load(self, keys: dict[str, Any], *, training: bool, default: str = "finetune/default"):
        """Load the recipe; mistakes are reported before torch is loaded."""
        from vitcli import recipe as recipes

        name = keys["data.dataset"]
        if name == "":
            raise typer.BadParameter("the value is empty", param_hint="--dataset")
        if name != SYNTHETIC:
            inputs.check_dataset(name)
        return recipes.load(self.recipe or default, self.set_ or (), keys, training=training)

    def network(self, ckpt: str | None, model: str | None) -> dict[str, Any]:
        """Return the keys of the network: without a recipe or a checkpoint, fresh weights."""
        if ckpt is None and self.recipe is not None:
            return {"model.name": model}
        if ckpt is None:
            return {"model.ckpt": "random", "model.name": model or MODEL_NAME}
        inputs.check_ckpt(ckpt)
        return {"model.ckpt": ckpt, "model.name": model}


@command(app, example="vit bench data --dataset photos/ --res 224 --compare timm")
def data(
    *,
    dataset: Annotated[str, option("--dataset", DATA, f"{options.DATA_HELP} (default: demo). [data.dataset]",
        "DATA", autocompletion=complete.datasets)] = "demo",
    split: Annotated[str, option("--split", DATA,
        "Split to read (default: train; with --eval test, else validation).", "SPLIT")] = "auto",
    res: options.Res = None,
    eval_: Annotated[bool, option("--eval", DATA,
        "Measure the preprocessing of evaluation (default: the augmentation of training).")] = False,
    batch_size: options.BatchSize = None,
    laps: LapOptions,
    printing: Printing,
) -> int:  # fmt: skip
    """Measure how fast images become batches.

    Cold and from the second epoch on, beside decoding alone.
    """
    keys = {"data.dataset": dataset, "data.image_size": res, "model.ckpt": "random", "model.name": MODEL_NAME}
    loaded = laps.load(keys | {"train.batch_size": batch_size}, training=not eval_)
    launch(None, "cpu")
    from vitcli.bench.data import measure_data

    result = measure_data(loaded, laps.bench_options(printing), split=split, is_training=not eval_)
    return _show(result, printing)


@command(app, example="vit bench train --model ViT-B/16 --batch-size 256 --compare timm")
def train(
    *,
    dataset: Images = SYNTHETIC,
    res: options.Res = None,
    ckpt: options.Ckpt = None,
    model: options.Model = None,
    batch_size: options.BatchSize = None,
    precision: options.Precision = None,
    device: options.Device = None,
    compile_: Annotated[bool, option("--compile/--no-compile", ADVANCED,
        "Compile the model with torch.compile (default: off).")] = False,
    per_device_batch: Annotated[str | None, option("--per-device-batch", ADVANCED,
        "Images per forward pass, or auto (default: as in training).", "N|auto")] = None,
    cached: Annotated[bool, option("--cached", DATA,
        "Decode all images before the first lap, as from the second epoch on (default: decode each time).")]
        = False,
    laps: LapOptions,
    printing: Printing,
) -> int:  # fmt: skip
    """Measure the training step of a recipe.

    In the real loop, with a learning rate of 0, beside the bare forward, backward and optimizer. Default:
    ViT-Ti/16 on images of noise.
    """
    keys = {"data.dataset": dataset, "data.image_size": res, "precision.compute": precision}
    keys |= laps.network(ckpt, model) | {"train.batch_size": batch_size}
    loaded = laps.load(keys, training=True)
    launch(None, device)
    from vitcli.bench.train import measure_train

    how = {"per_device_batch": count_or_auto(per_device_batch), "compile": compile_, "cached": cached}
    return _show(measure_train(loaded, laps.bench_options(printing, **how)), printing)


@command(
    app,
    example="""\
vit bench infer --models Ti/16,B/16 --res 64,128,224,384,512 --out speed
vit bench infer --ckpt runs/photos --dataset photos/ --compare timm""",
)
def infer(
    *,
    dataset: Images = SYNTHETIC,
    res: Annotated[str | None, option("--res", DATA,
        "Sides in pixels, one or several: 64,128,224,384,512 (default: 224, or that of --ckpt).",
        "PX,...")] = None,
    ckpt: options.Ckpt = None,
    models: Annotated[str | None, option("--models", MODEL,
        "Networks, one or several: Ti/16,B/16 (default: that of --ckpt, else ViT-Ti/16). [model.name]",
        "NAME,...",
        autocompletion=complete.models)] = None,
    batch_size: Annotated[int | None, option("--batch-size", DEVICES,
        "Images per forward pass (default: 64). [eval.batch_size]", "N", min=1)] = None,
    precision: options.Precision = None,
    device: options.Device = None,
    largest_batch: Annotated[bool, option("--largest-batch", RUN,
        "Also find the largest batch that fits into a GPU's memory, by trying.")] = False,
    laps: LapOptions,
    out: Annotated[Path | None, option("--out", RUN,
        "Folder for benchmark.json and the figure (default: write none).", "FOLDER")] = None,
    overwrite: options.Overwrite = False,
    printing: Printing,
) -> int:  # fmt: skip
    """Measure the forward pass, by network and resolution.

    With several resolutions: Figure 12 of the paper.
    """
    sides = _sides(res)
    if overwrite and out is None:
        raise VitError("no folder is named", where="--overwrite", fix="--out FOLDER as well")
    names = [name.strip() for name in (models or "").split(",") if name.strip()] or [None]
    if ckpt and len(names) > 1:
        raise VitError("a checkpoint is of one network", where="--ckpt and --models", fix="name one of them")
    keys = {"data.dataset": dataset, "precision.compute": precision, "eval.batch_size": batch_size}
    loaded = [
        laps.load(keys | laps.network(ckpt, name), training=False, default="evaluate/default")
        for name in names
    ]
    launch(None, device)
    from vitcli.bench.infer import measure_infer

    settings = laps.bench_options(printing, out=out, overwrite=overwrite)
    return _show(measure_infer(loaded, settings, sides=sides, largest_batch=largest_batch), printing)
# fmt: on


def _sides(res: str | None) -> tuple[int, ...]:
    """Parse --res of `vit bench infer`."""
    words = [] if res is None else [word.strip() for word in res.split(",")]
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word) < 100_000):
            message = f"{word!r} is not a side in pixels: 224, or several as 64,128,224"
            raise typer.BadParameter(message, param_hint="--res")
    return tuple(dict.fromkeys(map(int, words)))


def _show(result: dict[str, Any], printing: Printing) -> int:
    from vitcli.bench.text import as_text

    return printing.show(result, as_text)
