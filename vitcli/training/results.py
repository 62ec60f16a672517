"""A finished run to its folder: weights, pictures, model card and, last of all, the summary."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from vitcli.distributed import runtime
from vitcli.evaluation.metrics import PatchScores, Scores
from vitcli.evaluation.setup import preprocessing_of
from vitcli.export.model_card import card_of
from vitcli.output import plots, run_folder
from vitcli.output.redaction import public_name
from vitcli.output.run_folder import RunFolder
from vitcli.training.loop import Progress
from vitcli.training.setup import Job
from vitcli.weights.io import write_weights


def summarise(
    job: Job,
    path: Path,
    scores: Scores | PatchScores,
    progress: Progress,
    *,
    skipped: set[str],
    probed: dict[str, Any] | None,
) -> dict[str, Any]:
    """The object of summary.json and --json."""
    wanted, images = job.recipe, job.plan.images_seen
    run_scores = {name: value for name, value in asdict(scores).items() if name != "num_examples"}
    return {
        "command": job.command,
        "run_dir": str(path),
        "model": job.start.arch.name,
        "ckpt": job.start.origin,
        "dataset": wanted.data.dataset,
        "train_split": job.train_split.name,
        "num_train_examples": job.plan.num_examples,
        "num_classes": job.train_split.num_classes,
        "resolution": wanted.data.image_size,
        "steps": job.plan.total_steps,
        "batch_size": job.plan.batch_size,
        "lr": job.lr,
        "dev_top1_by_lr": None,
        **run_scores,
        "top1_std": None,
        "runs": [{"seed": wanted.train.seed, **run_scores}],
        "num_eval_examples": scores.num_examples,
        "eval_split": job.eval_split.name,
        "fewshot": probed,
        "preprocessing": preprocessing_of(wanted).summary(),
        "num_skipped_images": len(skipped),
        "skipped_images": sorted(skipped)[:100],
        "images_per_s": images / progress.elapsed_s if progress.elapsed_s else None,
        "elapsed_s": progress.elapsed_s,
        "exaflops": job.plan.exaflops,
        "peak_memory_gib": runtime.peak_memory_gib(),
        "precision": job.machine.precision,
        "num_processes": job.machine.world_size,
        "weights": str(path / "model.safetensors"),
    }


def write_results(
    job: Job,
    folder: RunFolder,
    scores: Scores | PatchScores,
    summary: dict[str, Any],
    weights: dict[str, Tensor],
) -> None:
    """Everything a finished run leaves; a folder with a summary is a finished one."""
    folder.log({"step": job.plan.total_steps, "eval": asdict(scores)})
    if summary["fewshot"]:
        folder.log({"step": job.plan.total_steps, "probe": summary["fewshot"]})
    write_weights(
        folder.path,
        weights,
        job.start.arch,
        preprocessing=preprocessing_of(job.recipe).as_dict(),
        class_names=job.train_split.class_names if job.start.arch.num_classes else None,
        metadata={
            "trained_by": job.command,
            "from": job.start.origin and public_name(job.start.origin),
            "steps": job.plan.total_steps,
            "averaged": bool(job.recipe.optimizer.average),
            "dev_cut": job.eval_split.dev_cut,
            **({"top1": scores.top1} if isinstance(scores, Scores) else {}),
        },
    )
    pictures = folder.path / "figures"
    pictures.mkdir(exist_ok=True)
    for name, figure in plots.training_curves(run_folder.read_metrics(folder.path)).items():
        figure.savefig(pictures / f"{name}.png")
    folder.write_text("README.md", card_of(summary, job.recipe, job.start.arch))
    folder.write_json(run_folder.SUMMARY, summary)
