"""Overhead of the training step: our loop against a bare one of forward, backward and optimizer.

    python benchmarks/step_overhead.py [--model ViT-demo/8] [--res 64] [--batch-size 64] [--average]

Both train the same network on the same batches, which are in memory as the loader would deliver them. The
bare loop has its pixels normalised already; ours normalises them, seeds dropout, clips, checks for numbers
that are not finite, averages the weights if asked to, and logs every tenth step. They alternate. The overhead
is the part of our step that is neither forward, backward nor optimizer, from medians and minima of rounds.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import torch

from vitcli.data.loader import Batch
from vitcli.data.transforms import to_model_range
from vitcli.distributed import runtime as runtimes
from vitcli.models.build import architecture, build
from vitcli.output.progress import Progress
from vitcli.output.run_folder import RunFolder
from vitcli.recipe.schema import Optimizer
from vitcli.training import loop, objective
from vitcli.training.gradients import DdpSum
from vitcli.training.optim import WeightAverage, build_optimizer
from vitcli.training.schedule import Plan
from vitcli.training.state import TrainingState

HALF = (0.5,) * 3
LR = 1e-3


def main() -> None:
    options = parsed()
    runtime = runtimes.start(options.precision)
    size = (options.res, options.res)
    torch.manual_seed(0)
    network = build(architecture(options.model, image_size=size, num_classes=10), dropout=0.1)
    model = network.to(runtime.device)
    settings = Optimizer.model_construct(
        name=options.optimizer,
        momentum=0.9,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        decay_on="matrices",
    )
    optimizer = build_optimizer(model, settings)
    batches = [random_batch(options.batch_size, size) for _ in range(4)]
    average = WeightAverage(model, factor=0.99) if options.average else None
    loss = objective.supervised(objective.loss_fn("softmax", label_smoothing=0.0), mixup=0.0)

    def ours() -> None:
        plan = Plan(options.steps, 0, options.batch_size, options.batch_size, 1, 1, 1000, 1000, None)
        numbers = loop.LoopSettings(
            plan, lambda step: LR, 1.0, HALF, HALF, seed=0, log_every=10, save_every=0
        )
        gradients = DdpSum(model, runtime, parts=1)
        state = TrainingState(runtime, model, model, optimizer, gradients, average)
        with tempfile.TemporaryDirectory() as folder, closing(RunFolder(Path(folder, "run"))) as run_folder:
            loop.train(
                state, numbers, loss, itertools.cycle(batches), evaluation=None, saver=None,
                folder=run_folder, progress=Progress(quiet=True),
            )  # fmt: skip

    prepared = [
        (
            to_model_range(batch.images_BCHW.to(runtime.device), mean=HALF, std=HALF),
            batch.labels_B.to(runtime.device),
        )
        for batch in batches
    ]

    def bare() -> None:
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = LR
        for _, (images_BCHW, labels_B) in zip(range(options.steps), itertools.cycle(prepared), strict=False):
            with runtimes.autocast(runtime.device, runtime.precision):
                value = loss(model, images_BCHW, labels_B)
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
        if runtime.device.type == "cuda":
            torch.cuda.synchronize()

    ours(), bare()  # the first steps are slow
    times = {ours: [], bare: []}
    for _ in range(options.rounds):
        for train in times:
            began_at, cpu_began_at = time.perf_counter(), time.process_time()
            train()
            times[train].append(
                (
                    (time.perf_counter() - began_at) / options.steps,
                    (time.process_time() - cpu_began_at) / options.steps,
                )
            )
    for number, clock in enumerate(("wall", "CPU")):
        ms = {train: [1e3 * pair[number] for pair in pairs] for train, pairs in times.items()}
        for name, choose in (("median", statistics.median), ("least", min)):
            mine, theirs = choose(ms[ours]), choose(ms[bare])
            print(
                f"{clock}, {name}: ours {mine:.2f} ms, bare {theirs:.2f} ms a step; "
                f"overhead {1 - theirs / mine:.1%}"
            )


def random_batch(batch_size: int, size: tuple[int, int]) -> Batch:
    pixels_BHWC = torch.randint(0, 256, (batch_size, *size, 3), dtype=torch.uint8)
    if torch.cuda.is_available():
        pixels_BHWC = pixels_BHWC.pin_memory()
    labels_B = torch.randint(0, 10, (batch_size,))
    return Batch(pixels_BHWC.permute(0, 3, 1, 2), labels_B, torch.arange(batch_size), ())


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="ViT-demo/8")
    parser.add_argument("--res", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--average", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
