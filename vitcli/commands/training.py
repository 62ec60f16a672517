"""What pre-training and fine-tuning share: a checked recipe and a model to a finished run folder.

Not a command of its own. `pretrain` and `finetune` say where the network comes from; everything after that is
the same, and stands here in the order it happens.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitcli import (
    checkpoint,
    costs,
    data,
    figures,
    inference,
    loader,
    losses,
    model_card,
    optim,
    order,
    recipe,
    runlog,
    runtime,
)
from vitcli.commands.pixels import preprocessing_of, train_transform_of
from vitcli.console import Console
from vitcli.errors import VitError
from vitcli.recipe import Recipe
from vitcli.schedule import Plan, choose_per_device_batch, lr_at_step, plan
from vitcli.split import Split
from vitcli.train import Progress, train
from vitcli.variants import Architecture
from vitcli.weights import write_weights

# Largest forward pass chosen by itself. Small on a CPU, where it costs nothing, so that a step has several
# parts and several processes can share them without changing dropout's draws.
PER_DEVICE_BATCH_CAP = {"cpu": 16}
PER_DEVICE_BATCH_CAP_GPU = 64
MEASURED_STEPS = 10


@dataclass(frozen=True)
class RunOptions:
    """Where and how fast: what the command line says besides the recipe."""

    out: Path | None
    per_device_batch: int | None
    workers: int | None
    compile: bool
    track: str | None
    overwrite: bool
    dry_run: bool
    measure: bool
    quiet: bool
    arguments: list[str]


@dataclass(frozen=True)
class Start:
    """A network ready to be trained.

    Attributes:
        origin: what its weights are, for the summary: the checkpoint as the user named it, or None if fresh.
        notes: lines about what was loaded, for the person.
    """

    model: nn.Module
    arch: Architecture
    origin: str | None
    notes: list[str]


def run(
    command: str, resolved: Recipe, options: RunOptions, make_model: Callable[[Split, tuple[int, int]], Start]
) -> dict[str, Any]:
    """Train by a recipe and report on the held-out split; the summary of the run, or its plan with --dry-run."""
    if options.out and not options.overwrite and not options.dry_run:
        earlier = _finished(options.out, resolved)
        if earlier:
            return earlier
    lr = _one_rate(resolved)
    machine = runtime.start(resolved.precision.compute, track=options.track)
    console = Console(quiet=options.quiet, is_main=machine.is_main)
    with machine.accelerator.main_process_first():  # the others then find what it has cached
        train_split, eval_split = _open_data(resolved)
    torch.manual_seed(order.derive_seed(resolved.train.seed, "init"))
    start = make_model(train_split, resolved.data.image_hw)
    plan_ = _plan(resolved, options, machine, start, train_split)
    session = Session(command, resolved, options, machine, console, start, plan_, lr, train_split, eval_split)
    if options.dry_run:
        return session.dry_run()
    console.note(f"{start.arch.name} on {train_split.name}: {len(train_split)} images, {train_split.num_classes} classes")
    for line in start.notes:
        console.note(line)
    return session.run()


class Session:
    """One run from its first step, or its last checkpoint, to its summary."""

    def __init__(self, command, resolved, options, machine, console, start, plan_, lr, train_split, eval_split):
        self.command, self.recipe, self.options = command, resolved, options
        self.machine, self.console = machine, console
        self.start, self.plan, self.lr = start, plan_, lr
        self.train_split, self.eval_split = train_split, eval_split
        self.preprocessing = preprocessing_of(resolved)
        self.num_threads = options.workers or loader.default_threads(machine.processes_here)
        self.progress = Progress()
        self.folder: runlog.RunFolder | None = None
        self.path: Path | None = None

    def dry_run(self) -> dict[str, Any]:
        """The plan, and with --measure its time from ten real steps; nothing is written."""
        found = {
            "command": self.command,
            "model": self.start.arch.name,
            "params": costs.num_params(self.start.arch),
            "forward_gmacs": _rounded(costs.forward_macs(self.start.arch), 1e9),
            **asdict(self.plan),
            "precision": self.machine.precision,
            "estimated_peak_memory_gib": self._estimated_memory_gib(),
            "recipe": recipe.to_toml(self.recipe),
        }
        if self.options.measure:
            self.plan = replace(self.plan, total_steps=min(MEASURED_STEPS, self.plan.total_steps))
            self._prepare()
            self._train(save=lambda: None)
            images_per_s = self.plan.total_steps * self.plan.batch_size / self.progress.elapsed_s
            found["measured_images_per_s"] = images_per_s
            found["measured_hours"] = found["images_seen"] / images_per_s / 3600
            found["measured_peak_memory_gib"] = runtime.peak_memory_gib()
        return found

    def run(self) -> dict[str, Any]:
        self.path = self.machine.on_main(self._open_folder)
        self._prepare()
        self._resume()
        self._train(save=self._save)
        scores = self._evaluate_weights()
        skipped = self.machine.union(self.progress.skipped)
        summary = self._summary(scores, skipped)
        if self.folder:
            self._write_results(scores, summary)
        return summary

    # ------------------------------------------------------------ before

    def _open_folder(self) -> Path:
        path = self.options.out or _default_folder(self.command, self.recipe, self.start.arch)
        self.folder = runlog.RunFolder(path, overwrite=self.options.overwrite)
        if (path / runlog.RECIPE).exists():
            _refuse_other_recipe(path, self.recipe)
        checkpoint.clean(path)
        self.folder.write_start(recipe.to_toml(self.recipe), runlog.environment(self.options.arguments))
        self.folder.write_json("plan.json", asdict(self.plan))
        self.console.note(f"run folder {path}")
        return path

    def _prepare(self) -> None:
        chosen = self.recipe.optimizer
        self.bare_model = self.start.model
        optimizer = optim.build_optimizer(
            self.bare_model,
            name=chosen.name,
            momentum=chosen.momentum,
            betas=chosen.betas,
            eps=chosen.eps,
            weight_decay=chosen.weight_decay,
            decay_on=chosen.decay_on,
        )
        if self.options.compile:
            self.bare_model.compile()
        self.model, self.optimizer = self.machine.accelerator.prepare(self.bare_model, optimizer)
        self.average = optim.WeightAverage(self.bare_model, factor=chosen.average) if chosen.average else None

    def _resume(self) -> None:
        found, notes = checkpoint.load_newest(self.path)
        for note in notes:
            self.console.note(f"{note}, using the one before it")
        if found is None:
            if self.folder:
                self.folder.rewind_metrics(0)
            return
        self._compare_fingerprints(found.state["fingerprint"])
        self.bare_model.load_state_dict(found.model)
        checkpoint.restore_optimizer(self.bare_model, self.optimizer, found.optimizer)
        if self.average:
            self.average.tensors = {name: value.to(self.machine.device) for name, value in found.average.items()}
        self.machine.scaler.load_state_dict(found.state["scaler"])
        self.progress = Progress(found.step, found.state["elapsed_s"], set(found.state["skipped"]))
        if self.folder:
            self.folder.rewind_metrics(found.state["metrics_bytes"])
        self.console.note(f"going on from step {found.step}")

    def _compare_fingerprints(self, before: dict[str, Any]) -> None:
        now = self._fingerprint()
        for key in ("train_data", "eval_data"):
            if before[key] != now[key]:
                raise VitError(
                    "the data set has changed since this run began",
                    where=f"{self.recipe.data.dataset}, {key.replace('_', ' ')}",
                    fix="restore the data set, or start a new run in another folder",
                )
        changed = [f"{key} {before.get(key)} -> {now[key]}" for key in now if before.get(key) != now[key]]
        if changed:
            self.console.note(f"no longer bit-exact with the start of the run: {', '.join(changed)}")

    def _fingerprint(self) -> dict[str, Any]:
        """What besides the recipe decides about the bits of a run."""
        return {
            "train_data": self.train_split.fingerprint,
            "eval_data": self.eval_split.fingerprint,
            "per_device_batch": self.plan.per_device_batch,
            "num_processes": self.plan.world_size,
            "precision": self.machine.precision,
            "device": self.machine.device.type,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }

    # ------------------------------------------------------------ during

    def _train(self, *, save: Callable[[], None]) -> None:
        wanted, rate, machine = self.recipe, self.recipe.schedule, self.machine
        batches = loader.train_batches(
            self.train_split,
            train_transform_of(wanted),
            start_step=self.progress.step,
            total_steps=self.plan.total_steps,
            batch_size=self.plan.batch_size,
            per_device_batch=self.plan.per_device_batch,
            seed=wanted.train.seed,
            rank=machine.rank,
            world_size=machine.world_size,
            on_bad_image=wanted.data.on_bad_image,
            num_threads=self.num_threads,
        )
        train(
            runtime=machine,
            model=self.model,
            optimizer=self.optimizer,
            average=self.average,
            batches=batches,
            loss_fn=losses.loss_fn(wanted.objective.loss, label_smoothing=wanted.objective.label_smoothing),
            mean=wanted.data.mean,
            std=wanted.data.std,
            plan=self.plan,
            lr_at=partial(
                lr_at_step,
                base_lr=self.lr,
                total_steps=self.plan.total_steps,
                warmup_steps=self.plan.warmup_steps,
                decay=rate.decay,
                end_lr=rate.end_lr,
            ),
            seed=wanted.train.seed,
            clip=wanted.optimizer.clip,
            log_every=wanted.train.log_every,
            eval_every=wanted.eval.every,
            save_every=wanted.train.save_every,
            evaluate=lambda: asdict(self._evaluate_weights()),
            save=save,
            folder=self.folder,
            console=self.console,
            progress=self.progress,
        )

    def _save(self) -> None:
        # The scaler and the counters are the same everywhere; what only one process skipped is gathered.
        skipped = self.machine.union(self.progress.skipped)

        def write() -> None:
            state = {
                "fingerprint": self._fingerprint(),
                "metrics_bytes": self.folder.metrics_bytes(),
                "elapsed_s": self.progress.elapsed_s,
                "skipped": sorted(skipped),
                "scaler": self.machine.scaler.state_dict(),
            }
            checkpoint.save(
                self.path,
                self.progress.step,
                model=self.bare_model,
                optimizer=self.optimizer,
                average=self.average.tensors if self.average else None,
                state=state,
                keep=self.recipe.train.keep_checkpoints,
            )

        self.machine.on_main(write)

    def _evaluate_weights(self):
        """Scores of the weights that the run would leave behind now: the averaged ones where there are any."""
        if self.average:
            with self.average.swapped_in(self.bare_model):
                return self._evaluate()
        return self._evaluate()

    def _evaluate(self):
        self.console.begin("evaluate", len(self.eval_split))
        done = 0

        def show(num_images: int) -> None:
            nonlocal done
            done = min(done + num_images, len(self.eval_split))
            self.console.update(done)

        scores, self.eval_skipped = inference.evaluate(
            self.bare_model,
            self.eval_split,
            self.preprocessing,
            runtime=self.machine,
            batch_size=self.recipe.eval.batch_size,
            on_bad_image=self.recipe.data.on_bad_image,
            num_threads=self.num_threads,
            progress=show,
        )
        self.console.end()
        return scores

    # ------------------------------------------------------------ after

    def _summary(self, scores, skipped: set[str]) -> dict[str, Any]:
        wanted, images = self.recipe, self.plan.images_seen
        run_scores = {"top1": scores.top1, "top5": scores.top5, "loss": scores.loss}
        return {
            "command": self.command,
            "run_dir": str(self.path),
            "model": self.start.arch.name,
            "ckpt": self.start.origin,
            "dataset": wanted.data.dataset,
            "num_classes": self.train_split.num_classes,
            "resolution": wanted.data.image_size,
            "steps": self.plan.total_steps,
            "batch_size": self.plan.batch_size,
            "lr": self.lr,
            "dev_top1_by_lr": None,
            **run_scores,
            "top1_std": None,
            "runs": [{"seed": wanted.train.seed, **run_scores}],
            "num_eval_examples": scores.num_examples,
            "eval_split": self.eval_split.name,
            "preprocessing": self.preprocessing.summary(),
            "num_skipped_images": len(skipped) + len(self.eval_skipped),
            "skipped_images": sorted({*skipped, *self.eval_skipped})[:100],
            "images_per_s": images / self.progress.elapsed_s if self.progress.elapsed_s else None,
            "elapsed_s": self.progress.elapsed_s,
            "exaflops": self.plan.exaflops,
            "peak_memory_gib": runtime.peak_memory_gib(),
            "precision": self.machine.precision,
            "num_processes": self.machine.world_size,
            "weights": str(self.path / "model.safetensors"),
        }

    def _write_results(self, scores, summary: dict[str, Any]) -> None:
        """Weights, pictures, model card, and last the summary: a run that has one is finished."""
        self.folder.log({"step": self.plan.total_steps, "eval": asdict(scores)})
        write_weights(
            self.path,
            self.average.tensors if self.average else self.bare_model.state_dict(),
            self.start.arch,
            preprocessing=self.preprocessing.as_dict(),
            class_names=self.train_split.class_names,
            metadata={
                "trained_by": self.command,
                "from": self.start.origin,
                "steps": self.plan.total_steps,
                "averaged": self.average is not None,
                "top1": summary["top1"],
            },
        )
        pictures = self.path / "figures"
        pictures.mkdir(exist_ok=True)
        for name, figure in figures.training_curves(runlog.read_metrics(self.path)).items():
            figure.savefig(pictures / f"{name}.png")
        self.folder.write_text("README.md", model_card.model_card(summary, recipe.to_toml(self.recipe)))
        self.folder.write_json(runlog.SUMMARY, summary)

    def _estimated_memory_gib(self) -> float | None:
        """Weights, gradients, optimizer and average, and what the backward pass of one part keeps."""
        arch, chosen = self.start.arch, self.recipe.optimizer
        copies = 2 + (2 if chosen.name == "adam" else 1) + bool(chosen.average)
        kept = costs.activation_bytes(arch, low_precision=self.machine.precision != "fp32")
        if kept is None:
            return None
        return (costs.num_params(arch) * 4 * copies + kept * self.plan.per_device_batch) / 2**30


def _open_data(resolved: Recipe) -> tuple[Split, Split]:
    wanted = resolved.data
    if wanted.dataset is None:
        raise VitError("no data set is named", where="--dataset (recipe key data.dataset)", fix="--dataset PATH")
    return data.open_train_and_eval(
        wanted.dataset,
        train_split=wanted.train_split,
        eval_split=wanted.eval_split,
        dev_fraction=wanted.dev_fraction,
        num_examples=wanted.num_examples,
        image_column=wanted.image_column,
        label_column=wanted.label_column,
        seed=resolved.train.seed,
    )


def _plan(resolved: Recipe, options: RunOptions, machine, start: Start, train_split: Split) -> Plan:
    batch_size = resolved.train.batch_size
    cap = PER_DEVICE_BATCH_CAP.get(machine.device.type, PER_DEVICE_BATCH_CAP_GPU)
    return plan(
        steps=resolved.schedule.steps,
        epochs=resolved.schedule.epochs,
        warmup=resolved.schedule.warmup,
        batch_size=batch_size,
        per_device_batch=options.per_device_batch
        or choose_per_device_batch(batch_size, world_size=machine.world_size, cap=cap),
        world_size=machine.world_size,
        num_examples=len(train_split),
        forward_macs=costs.forward_macs(start.arch),
    )


def _one_rate(resolved: Recipe) -> float:
    rates = resolved.optimizer.lr
    if isinstance(rates, float | int):
        return float(rates)
    listed = ", ".join(f"{rate:g}" for rate in rates)
    raise VitError(
        f"the recipe lists {len(rates)} learning rates to choose from ({listed})",
        where="recipe key optimizer.lr",
        fix=f"name the one to train with, such as --lr {rates[len(rates) // 2]:g}",
    )


def _finished(path: Path, resolved: Recipe) -> dict[str, Any] | None:
    summary = runlog.finished_summary(path)
    if summary is None or not (path / runlog.RECIPE).exists():
        return None
    _refuse_other_recipe(path, resolved)
    return summary


def _refuse_other_recipe(path: Path, resolved: Recipe) -> None:
    differing = recipe.differences(recipe.load(str(path / runlog.RECIPE)), resolved)
    if differing:
        raise VitError(
            f"the folder holds a run of another recipe: {'; '.join(differing[:4])}",
            where=f"--out {path}",
            fix="choose another folder, or --overwrite to delete that run",
        )


def _default_folder(command: str, resolved: Recipe, arch: Architecture) -> Path:
    words = (command, Path(resolved.data.dataset).name, arch.name, time.strftime("%Y%m%d-%H%M%S"))
    safe = ("".join(c if c.isalnum() or c in "._" else "-" for c in word).strip("-.") for word in words)
    return Path("runs", "-".join(safe))


def _rounded(value: float | None, unit: float) -> float | None:
    return None if value is None else round(value / unit, 3)
