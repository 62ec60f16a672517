"""`vit bench infer`: the forward pass by network and resolution, and the largest batch (paper, Figure 12)."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from vitcli.bench import figures, limits, synthetic
from vitcli.bench.measure import Stream, Waits, built_late, rates, steps_of_a_lap, synchronize
from vitcli.bench.setup import Benchmark, BenchOptions, check_one_process, endless_eval_batches, machine
from vitcli.data import dataset
from vitcli.data.loader import Batch
from vitcli.data.split import Split
from vitcli.data.transforms import preprocessing_of
from vitcli.distributed.runtime import Runtime, fits_in_memory, free_memory, last_that_fits
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import VitError, is_out_of_memory
from vitcli.evaluation import inference
from vitcli.evaluation.setup import settle_pixels
from vitcli.models.architecture import Architecture
from vitcli.models.build import architecture, build, check_image_size, last_layers
from vitcli.output import plots
from vitcli.output.atomic import write_json
from vitcli.output.progress import Progress
from vitcli.output.result_folder import ResultFolder
from vitcli.output.text import size_text
from vitcli.recipe import Recipe
from vitcli.weights.io import read_weights
from vitcli.weights.load import load_for_inference
from vitcli.weights.names import FRESH

SETTLE = 2  # batches before each lap, not timed
NUM_CLASSES = 1_000  # of networks without weights
MOST_BATCH = 2**16  # tried on a GPU
FOLDER = ResultFolder("benchmark", "benchmark.json", ("benchmark.json", "inference.png", "inference.svg"))


@dataclass(frozen=True)
class Case:
    """A network at a resolution, and the recipe with which it is measured."""

    recipe: Recipe
    arch: Architecture
    model: nn.Module


def measure_infer(
    recipes: Sequence[Recipe], options: BenchOptions, *, sides: Sequence[int], largest_batch: bool
) -> dict[str, Any]:
    """Return a row of numbers for each network and resolution; write them and a figure if asked to.

    Args:
        recipes: one per network.
        sides: resolutions in pixels, () for each network's own.
        largest_batch: also find the largest batch that fits into memory.
    """
    runtime = start_runtime(recipes[0].precision.compute)
    check_one_process(runtime)
    if largest_batch and runtime.device.type == "cpu":
        raise VitError(
            "the largest batch is found by filling the memory of a GPU, and this is a CPU",
            where="--largest-batch",
            fix="leave it out, or compute on a GPU with --device cuda",
        )
    progress = Progress(quiet=options.quiet)
    asked = {
        "models": [recipe.model.name or recipe.model.ckpt for recipe in recipes],
        "sides": list(sides),
        "dataset": recipes[0].data.dataset,
        "batch_size": recipes[0].eval.batch_size,
        "precision": runtime.precision,
        "compare": options.compare,
    }
    with ExitStack() as lock:
        if options.out:
            FOLDER.claim(lock, options.out, [asked], overwrite=options.overwrite)
        rows = []
        for recipe in recipes:
            for side in sides or (None,):
                row = _row(recipe, side, runtime, progress, options, largest_batch=largest_batch)
                rate = "out of memory" if row["out_of_memory"] else f"{row['images_per_s']:,.0f} images/s"
                progress.note(f"{row['model']} at {size_text(row['resolution'])} px: {rate}")
                rows.append(row)
                free_memory()
        result = {
            "command": "bench infer",
            "dataset": recipes[0].data.dataset,
            "precision": runtime.precision,
            "repeats": options.repeats,
            "rows": rows,
            "machine": machine(runtime),
            "asked": asked,
        }
        if options.out:
            _write(result, options)
    return result


def _write(result: dict[str, Any], options: BenchOptions) -> None:
    FOLDER.begin(options.out, [result["asked"]])
    result["out"] = str(options.out)
    figure = figures.by_resolution(result["rows"], device=result["machine"]["device_name"])
    for ending in plots.ENDINGS if figure else ():
        plots.save(options.out / f"inference.{ending}", figure)
    write_json(options.out / "benchmark.json", result)


def _row(
    recipe: Recipe,
    side: int | None,
    runtime: Runtime,
    progress: Progress,
    options: BenchOptions,
    *,
    largest_batch: bool,
) -> dict[str, Any]:
    """Measure one network at one resolution; running out of memory is a result, too."""
    case = _case(recipe, side, runtime, progress)
    height, width = case.arch.image_size
    row = {
        "model": case.arch.name,
        "ckpt": None if recipe.model.ckpt in (None, FRESH) else recipe.model.ckpt,
        "resolution": height if height == width else [height, width],
        "batch_size": recipe.eval.batch_size,
        "flops_per_image": limits.inference_flops(case.arch),
        "out_of_memory": False,
    }
    try:
        row |= _measure(case, runtime, progress, options)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        row |= {"out_of_memory": True, "images_per_s": None, "fraction_of_limit": None, "compare": None}
    free_memory()
    if largest_batch:
        row["largest_batch"] = _largest_batch(case, runtime)
    return row


def _case(recipe: Recipe, side: int | None, runtime: Runtime, progress: Progress) -> Case:
    """Build the network with its weights, or with fresh ones, at the resolution."""
    recipe = settle_pixels(recipe, "evaluate", quiet=progress.is_silent)
    size = (side, side) if side else recipe.data.image_hw
    settings = recipe.model
    if settings.ckpt in (None, FRESH):
        arch = architecture(settings.name, image_size=size, num_classes=NUM_CLASSES)
        model = build(arch, dropout=0.0, init="timm").to(runtime.device).eval()
        for layer in last_layers(model):  # a GPU multiplies zeros faster
            nn.init.normal_(layer.weight, std=0.02)
    else:
        weights = read_weights(settings.ckpt, model_name=settings.name, quiet=progress.is_silent)
        size = size if side else weights.architecture.image_size
        arch = replace(weights.architecture, image_size=size)
        check_image_size(arch)
        model, arch = load_for_inference(
            weights, size, settings.posemb_resample, runtime.device, progress, needs_head=False
        )
    data = recipe.data.model_copy(update={"image_size": size})
    return Case(recipe.model_copy(update={"data": data}), arch, model)


def _measure(case: Case, runtime: Runtime, progress: Progress, options: BenchOptions) -> dict[str, Any]:
    """Return the rates of the forward pass as `vit evaluate` runs it, against the limit and timm's loop."""
    batch_size, device = case.recipe.eval.batch_size, runtime.device
    bench = Benchmark(runtime, options)
    shapes = limits.linear_shapes(case.arch, batch_size, device.type)
    bench.limit(shapes)
    batches = Waits(_batches(case, options))
    outputs = inference.outputs_of(
        case.model, batches, preprocessing_of(case.recipe.data), device, runtime.precision
    )

    # How long a lap is to be: the second batch is as slow as any later one.
    next(outputs)
    began_at = time.perf_counter()
    next(outputs)
    step_s = time.perf_counter() - began_at
    steps = options.steps or steps_of_a_lap(step_s)
    stream = partial(Stream, device=device, settle=SETTLE, per_lap=steps)
    sides = {"ours": stream(outputs, images_of=lambda output: len(output[1]), waits=batches).lap}
    if options.compare:
        timm_work = partial(_timm_work, case, runtime, options)
        sides["timm"] = built_late(lambda: stream(timm_work(), images_of=int).lap)
    what = f"{case.arch.name} at {case.arch.image_size[0]} px, {steps} batches of {batch_size}"
    bench.announce(progress, what, (steps + SETTLE) * step_s, len(sides))
    bench.take_turns(sides)

    limit, speed = bench.limit(shapes), rates(bench.laps["ours"])
    return {
        "steps": steps,
        **speed,
        "limit_flops_per_s": limit,
        "fraction_of_limit": limits.inference_flops(case.arch) * speed["images_per_s"] / limit,
        **bench.peaks,
        "compare": bench.peer("infer"),
    }


def _batches(case: Case, options: BenchOptions) -> Iterator[Batch]:
    """Yield the batches of the data set pass after pass, or one of noise; without end."""
    recipe = case.recipe
    if recipe.data.dataset == synthetic.NAME:
        return synthetic.batches(recipe.eval.batch_size, recipe.data.image_hw, case.arch.num_classes)
    return endless_eval_batches(_split(recipe), recipe.data, recipe.eval.batch_size, options.num_workers)


def _split(recipe: Recipe) -> Split:
    return dataset.open_eval(recipe.data, recipe.data.eval_split, needs_labels=False)


def _timm_work(case: Case, runtime: Runtime, options: BenchOptions) -> Iterator[int]:
    """Return timm's validation loop on the same architecture, images, device and precision."""
    from vitcli.bench import timm_peer

    recipe, device = case.recipe, runtime.device
    model = timm_peer.network(case.arch).to(device)
    batches = timm_peer.batches(
        None if recipe.data.dataset == synthetic.NAME else _split(recipe),
        recipe.data,
        batch_size=recipe.eval.batch_size,
        num_classes=case.arch.num_classes,
        num_workers=options.num_workers,
        is_training=False,
        device=device,
    )
    return timm_peer.validation(model, batches, device, runtime.precision)


def _largest_batch(case: Case, runtime: Runtime) -> int:
    """Return the largest batch whose forward pass fits into memory, to an eighth of a power of two.

    0 if not even one image fits.
    """

    def fits(size: int) -> bool:
        return fits_in_memory(lambda: _forward(case, runtime, size))

    powers = (2**power for power in range(MOST_BATCH.bit_length()))
    largest = last_that_fits(powers, fits)
    step = max(1, largest // 8)
    between = range(largest + step, 2 * largest, step) if largest < MOST_BATCH else ()
    return last_that_fits(between, fits) or largest


def _forward(case: Case, runtime: Runtime, size: int) -> None:
    batches = synthetic.batches(size, case.arch.image_size, case.arch.num_classes)
    next(
        inference.outputs_of(
            case.model, batches, preprocessing_of(case.recipe.data), runtime.device, runtime.precision
        )
    )
    synchronize(runtime.device)
