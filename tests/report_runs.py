"""Run folders for tests of the report, written down as `vit` writes them; no network is trained."""

import json
import math
import os
import socket
from pathlib import Path
from typing import Any

RECIPE = """[model]
ckpt = "{ckpt}"

[data]
dataset = "{dataset}"
image_size = {resolution}
mean = [0.5, 0.5, 0.5]

[optimizer]
lr = {lr}
momentum = 0.9

[schedule]
steps = {steps}

[train]
batch_size = 64
seed = {seed}
runs = {runs}
"""


def write_json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def finetuned(
    folder: Path,
    top1: float = 0.9,
    *,
    dataset: str = "oxford_pets",
    model: str = "ViT-B/16",
    ckpt: str = "timm/b16",
    resolution: int = 384,
    steps: int = 500,
    lr: Any = 0.03,
    seed: int = 0,
    top1s: tuple[float, ...] = (),
    std: float | None = None,
    is_finished: bool = True,
    step: int | None = None,
    evaluated: int = 5,
    **more: Any,
) -> Path:
    """A run of `vit finetune`; with `top1s` one of several seeds, `top1` their mean."""
    folder.mkdir(parents=True)
    told = dict(
        ckpt=ckpt, dataset=dataset, resolution=resolution, steps=steps, seed=seed, runs=max(1, len(top1s))
    )
    (folder / "recipe.toml").write_text(RECIPE.format(lr=lr, **told))
    write_json(folder / "plan.json", {"total_steps": steps})
    write_json(folder / "environment.json", {"command_line": ["vit", "finetune", "--dataset", dataset]})
    (folder / ".vit.lock").write_text(f"pid {os.getpid()} on {socket.gethostname()}\n")
    last = steps if step is None else step
    logged = range(0, last + 1, max(1, last // 60))
    records: list[dict[str, Any]] = [
        {"step": at, "loss": 0.2 + 2.3 * math.exp(-5 * at / steps) + 0.05 * math.sin(at), "lr": 0.01}
        for at in logged
    ]
    for k in range(1, evaluated + 1):
        scores = {"top1": top1 * (1 - math.exp(-k)), "top5": 1.0, "loss": 0.5, "num_examples": 3669}
        records.append({"step": last * k // evaluated, "eval": scores})
    write_lines(folder / "metrics.jsonl", records)
    write_lines(folder / "timing.jsonl", [{"step": last, "step_s": 0.25, "images_per_s": 256.0}])
    if is_finished:
        scores = {"top1": top1, "top5": 0.99, "loss": 0.41}
        runs = [{"seed": at, **scores, "top1": one} for at, one in enumerate(top1s)] or [
            {"seed": seed, **scores}
        ]
        summary = {
            "command": "finetune", "run_dir": str(folder), "model": model, "ckpt": ckpt, "dataset": dataset,
            "num_classes": 37, "resolution": resolution, "steps": steps, "batch_size": 64,
            "lr": more.get("chosen", {}).get("optimizer.lr", lr),
            "dev_top1_by_lr": None, **scores, "top1_std": std, "runs": runs, "num_eval_examples": 3669,
            "eval_split": f"{dataset}, split test", "fewshot": None, "images_per_s": 251.3,
            "intervals": {"top1": [max(0.0, top1 - 0.01), min(1.0, top1 + 0.01)]},
            "elapsed_s": 127.4, "exaflops": 0.0125,
            "peak_memory_gib": 7.5, "precision": "bf16", "num_processes": 1,
        }  # fmt: skip
        write_json(folder / "summary.json", summary | more)
    return folder


def of_numbers(folder: Path, mae: float, *, runs: int = 1, **more: Any) -> Path:
    """A regression, of one seed or several."""
    finetuned(folder, dataset="faces", **more)
    with (folder / "recipe.toml").open("a") as recipe:
        recipe.write('\n[objective]\nloss = "regression"\n')
    summary = json.loads((folder / "summary.json").read_text())
    scores = {"mae": mae, "rmse": 1.5 * mae, "r2": 0.8, "loss": 0.2}
    for key in ("top1", "top5", "intervals"):
        del summary[key]
    intervals = {"mae": [0.9 * mae, 1.1 * mae], "rmse": [mae, 2 * mae], "r2": [0.7, 0.9]}
    summary |= {"target": {"name": "age", "mean": 30.0, "std": 9.0}, **scores}
    summary |= {"intervals": intervals} if runs == 1 else {}
    write_json(folder / "summary.json", summary | {"runs": [{"seed": k, **scores} for k in range(runs)]})
    return folder


def predicted(folder: Path, rows: list[tuple[int, int, float]], names: tuple[str, ...]) -> Path:
    """Predictions as a finished run keeps them: (label, prediction, probability) of each image."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "row": list(range(len(rows))),
        "place": [f"photos/{names[label]}/{k}.jpg" for k, (label, *_) in enumerate(rows)],
        "label": [label for label, *_ in rows],
        "rank": [int(label != guess) for label, guess, _ in rows],
        "loss": [0.5] * len(rows),
        "top_classes": [[guess, 0] for _, guess, _ in rows],
        "top_probabilities": [[probability, 0.0] for *_, probability in rows],
    }
    about = {"vit": json.dumps({"ckpt": str(folder), "class_names": list(names)})}
    pq.write_table(pa.table(columns).replace_schema_metadata(about), folder / "predictions.parquet")
    mistakes = [
        {"row": k, "place": columns["place"][k], "label": names[label], "predicted": names[guess],
         "probability": probability, "thumbnail": "/9j/4AAQSkZJRg=="}
        for k, (label, guess, probability) in enumerate(rows) if label != guess
    ]  # fmt: skip
    write_json(folder / "mistakes.json", {"mistakes": sorted(mistakes, key=lambda one: -one["probability"])})
    return folder


def selected(
    folder: Path, by_lr: dict[float, float], chosen: float, top1s: tuple[float, ...], **more: Any
) -> Path:
    """A selection of the learning rate and runs with the chosen one."""
    mean = sum(top1s) / len(top1s)
    std = math.sqrt(sum((one - mean) ** 2 for one in top1s) / (len(top1s) - 1))
    choices = [{"optimizer.lr": lr, "dev_top1": dev, "dev_loss": 0.3} for lr, dev in by_lr.items()]
    finetuned(
        folder,
        mean,
        lr=list(by_lr),
        top1s=top1s,
        std=std,
        choices=choices,
        chosen={"optimizer.lr": chosen},
        **more,
    )
    for lr, dev in by_lr.items():
        finetuned(folder / "arms" / f"lr-{lr:g}", dev, **more)
    for seed, top1 in enumerate(top1s):
        finetuned(folder / "runs" / f"seed-{seed}", top1, seed=seed, **more)
    arms = [
        {"arm": {"optimizer.lr": lr}, "dev_top1": dev, "dev_loss": 0.3, "run_dir": f"arms/lr-{lr:g}"}
        for lr, dev in by_lr.items()
    ]
    runs = [{"run": {"seed": s}, "top1": t, "run_dir": f"runs/seed-{s}"} for s, t in enumerate(top1s)]
    write_lines(folder / "metrics.jsonl", arms + runs)
    return folder


def pretrained(folder: Path, top1: float | None = 0.71, **more: Any) -> Path:
    probed = {"dataset": "demo", "shots": 5, "top1": 0.64, "runs": [0.64], "images_seen": 10, "exaflops": 3.5}
    finetuned(folder, top1 or 0.0, dataset="imagenet21k", exaflops=55.0, fewshot=probed, **more)
    summary = json.loads((folder / "summary.json").read_text()) | {"command": "pretrain", "ckpt": None}
    if top1 is None:
        del summary["top1"], summary["top5"]
        summary |= {"patch_accuracy": 0.31, "most_frequent_color": 0.02}
    write_json(folder / "summary.json", summary)
    return folder


def few_shot(folder: Path, means: dict[int, float], *, model: str = "ViT-B/16", **more: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text('[fewshot]\nl2 = 1024.0\nclassifier = "least-squares"\n')
    shots = {
        str(k): {"mean": mean, "std": 0.01, "runs": [mean - 0.01, mean, mean + 0.01]}
        for k, mean in means.items()
    }
    summary = {
        "command": "fewshot", "ckpt": "timm/b16", "model": model, "dataset": "cifar100",
        "eval_split": "cifar100, split test", "resolution": 224, "shots": shots,
        "classifier": "least-squares", "elapsed_s": 3.0, "precision": "fp32", "num_processes": 1,
    }  # fmt: skip
    write_json(folder / "summary.json", summary | more)
    return folder


def evaluation(
    ckpt: str = "runs/pets", top1: float = 0.9, num_classes: int = 4, **more: Any
) -> dict[str, Any]:
    names = [f"breed {number}" for number in range(num_classes)]
    return {
        "command": "evaluate", "ckpt": ckpt, "model": "ViT-B/16", "dataset": "oxford_pets",
        "eval_split": "oxford_pets, split test", "num_classes": num_classes, "resolution": 384, "top1": top1,
        "top5": 0.99, "loss": 0.31, "num_eval_examples": 10 * num_classes, "images_per_s": 400.0,
        "elapsed_s": 9.0,
        "precision": "fp32", "num_processes": 1, "ece": 0.021, "brier": 0.12,
        "intervals": {"top1": [0.88, 0.92]},
        "per_class": {name: {"top1": 0.9, "num_examples": 10} for name in names},
        "reliability": {
            "edges": [k / 15 for k in range(16)], "counts": [k for k in range(15)],
            "confidence": [(k + 0.5) / 15 if k else 0.0 for k in range(15)],
            "accuracy": [(k / 15) for k in range(15)],
        },
    } | more  # fmt: skip


def evaluated(folder: Path, *said: dict[str, Any]) -> Path:
    """A folder of `vit evaluate --out`, of one or several evaluations."""
    whole = said[0] if len(said) == 1 else {"command": "evaluate", "evaluations": list(said)}
    write_json(folder / "evaluation.json", whole)
    places = [folder] if len(said) == 1 else [folder / str(k) for k in range(1, len(said) + 1)]
    for place, one in zip(places, said, strict=True):
        place.mkdir(exist_ok=True)
        names = list(one["per_class"] or {})
        rows = [(n, n, 9) for n in names] + [(n, names[k - 1], 1) for k, n in enumerate(names)]
        lines = ["class,predicted,num_examples", *(f"{a},{b},{count}" for a, b, count in rows)]
        (place / "confusion.csv").write_text("\n".join(lines) + "\n")
    return folder


def vtab(folder: Path, top1s: dict[str, tuple[str, float | None]], **more: Any) -> Path:
    """A folder of --dataset vtab: task to its group and top-1."""
    known = [one for _, one in top1s.values() if one is not None]
    for task, (_, top1) in top1s.items():
        if top1 is not None:
            finetuned(folder / task, top1, dataset=f"vtab/{task}", **more)
    tasks = {task: {"group": group, "top1": top1} for task, (group, top1) in top1s.items()}
    groups = {group: None for group, _ in top1s.values()}
    whole = {"command": "finetune", "dataset": "vtab", "tasks": tasks, "groups": groups, "top1": None}
    write_json(folder / "summary.json", whole | {"mean_of_finished": sum(known) / len(known)})
    return folder


def everything(root: Path) -> Path:
    """Twenty folders of every kind."""
    for at, (model, ckpt) in enumerate(
        (("ViT-B/16", "timm/b16"), ("ViT-L/16", "timm/l16"), ("ViT-H/14", "timm/h14"))
    ):
        for step, dataset in enumerate(("cifar10", "cifar100", "oxford_flowers102", "imagenet")):
            top1 = (0.98, 0.91, 0.985, 0.84)[step] + 0.004 * at
            top1s = (top1 - 0.002, top1, top1 + 0.0015 * (at + 1))
            folder = root / f"{dataset}-{model[-4:-3].lower()}{at}"
            finetuned(folder, top1, dataset=dataset, model=model, ckpt=ckpt,
                      top1s=top1s, std=0.0021, exaflops=0.02 * (at + 1))  # fmt: skip
    for at, (model, ckpt) in enumerate((("ViT-B/16", "timm/b16"), ("ViT-L/16", "timm/l16"))):
        by_lr = {
            lr: 0.93 + 0.01 * at - 0.02 * abs(math.log10(lr / 0.01)) for lr in (0.001, 0.003, 0.01, 0.03)
        }
        top1s = (0.942 + 0.01 * at, 0.944 + 0.01 * at, 0.9432 + 0.012 * at)
        selected(root / f"pets-select-{at}", by_lr, 0.01, top1s, model=model, ckpt=ckpt)
    finetuned(root / "pets-under-way", 0.8, is_finished=False, step=180)
    pretrained(root / "pretrain-b16", model="ViT-B/16")
    few_shot(root / "shots-b", {1: 0.41, 5: 0.66, 10: 0.73, 25: 0.79})
    few_shot(root / "shots-l", {1: 0.46, 5: 0.70, 10: 0.77, 25: 0.81}, model="ViT-L/16", ckpt="timm/l16")
    curve = [
        {"resolution": side, "top1": 0.9 - abs(side - 384) / 2000, "top5": 0.99} for side in (224, 384, 512)
    ]
    evaluated(
        root / "scored",
        evaluation(num_classes=12),
        evaluation("runs/big", 0.93, num_classes=37, resolutions=curve),
    )
    tasks = {
        "caltech101": "natural",
        "dtd": "natural",
        "eurosat": "specialized",
        "dsprites_loc": "structured",
    }
    vtab(
        root / "vtab-b16", {task: (group, 0.7 + 0.05 * at) for at, (task, group) in enumerate(tasks.items())}
    )
    return root
