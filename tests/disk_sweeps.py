"""Sweeps over every operation on a faulty disk: `python -m tests.disk_sweeps WHAT FAULT SCRATCH [PHOTOS]`.

With a number in the place of the fault the command is killed so often, at random moments on a sound disk.
To be started by `faulty_disk.script`. It prints one JSON object: how many operations there are, how many were
struck, with what exit codes, and every problem, of which there must be none.
"""

import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import torch
from torch import nn

from tests import faulty_disk
from tests.disk_commands import Writer, digests, of_two_processes, run_words, writer
from tests.faulty_disk import FAULTS, Struck, command, in_a_fork
from tests.training.test_finetune import NETWORK, SMALL, TRICKY, fingerprint
from tests.training.test_shard import weights_and_metrics
from vitcli import recipe as recipes
from vitcli.distributed import startup
from vitcli.errors import VitError
from vitcli.output.run_folder import RunFolder, open_run
from vitcli.training import checkpoint

STEPS = (3, 6, 9)
TIMED = ("elapsed_s", "images_per_s", "peak_memory_gib", "run_dir")  # of a summary
RESULTS = ("*.safetensors", "config.json", "metrics.jsonl", "recipe.toml", "*.parquet", "mistakes.json")


def write_saves(run_dir: Path, acknowledged: Path) -> int:
    """Log nine steps and save three, as a run does; continue after the newest checkpoint."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    recipe = recipes.load("finetune/default", (), {"model.name": "ViT-demo/8"}, training=False)
    try:
        folder = open_run(run_dir, recipe, [], overwrite=False, keep_metrics=True)
        checkpoint.clean(run_dir)
        newest, _ = checkpoint.find_newest(run_dir)
        saved = checkpoint.read(run_dir, newest) if newest else None
        if saved:
            model.load_state_dict(saved.tensors["model"])
            checkpoint.restore_optimizer(model, optimizer, saved.tensors["optimizer"])
        folder.rewind_metrics(saved.state["metrics_bytes"] if saved else 0)
        for step in range((newest or 0) + 1, STEPS[-1] + 1):
            optimizer.zero_grad()
            model(torch.full((5, 3), float(step))).square().mean().backward()
            optimizer.step()
            folder.log({"step": step})
            if step in STEPS:
                tensors = checkpoint.copy_tensors(model, optimizer, None)
                state = {"metrics_bytes": folder.metrics_bytes()}
                saved = checkpoint.Checkpoint(step, tensors, state)
                checkpoint.save(run_dir, saved, keep=2, milestone_every=0)
                acknowledge(acknowledged, step)
        folder.close()
    except VitError as error:
        print(error)
        return error.exit_code
    except OSError as error:  # as the command line translates it
        print(f"error: {error.strerror}\n  where: {error.filename}\n  fix: .")
        return 5
    return 0


def acknowledge(file: Path, step: int) -> None:
    with file.open("a") as lines:
        lines.write(f"{step}\n")


def acknowledging(action: Callable[[], int], file: Path) -> Callable[[], int]:
    """Return a training command whose saves are noted in a file as soon as they return."""
    save = checkpoint.save

    def saved(run_dir: Path, what: checkpoint.Checkpoint, **options: object) -> list[Path]:
        left = save(run_dir, what, **options)
        if os.environ.get("RANK", "0") == "0":  # others return when their slices are written
            acknowledge(file, what.step)
        return left

    def run() -> int:
        checkpoint.save = saved
        return action()

    return run


def lost_steps(run_dir: Path, acknowledged: Path) -> list[str]:
    """Say if a checkpoint that was acknowledged is not there, or any is damaged."""
    if not acknowledged.exists():
        return []
    step = int(acknowledged.read_text().split()[-1])
    try:
        newest, notes = checkpoint.find_newest(run_dir)
    except VitError as error:
        return [str(error)]
    return [*notes, *([f"step {step} was acknowledged, {newest} is left"] if (newest or 0) < step else [])]


def files_of(folder: Path, names: tuple[str, ...] = ("*",)) -> dict[str, str]:
    """Return the hash of each file below a folder that one of the globs names, none of those on their way."""
    paths = sorted(path for name in names for path in folder.rglob(name) if path.is_file())
    paths = [path for path in paths if "/.tmp" not in str(path.relative_to(folder.parent))]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def results_of(folder: Path) -> dict[str, str]:
    """Return the hash of each result of training below a folder, and the summaries without their times."""
    summaries = {}
    for path in sorted(folder.rglob("summary.json")):
        summary = json.loads(path.read_text())
        kept = {key: value for key, value in summary.items() if key not in TIMED}
        summaries[str(path.relative_to(folder))] = json.dumps(kept, sort_keys=True)
    return files_of(folder, RESULTS) | summaries


def load_modules(action: Callable[[], int], scratch: Path) -> None:
    """Import what a command imports, so that each fork need not; the command runs once."""
    names = scratch / "modules"

    def listing() -> int:
        code = action()
        names.write_text("\n".join(sys.modules))
        return code

    in_a_fork(listing, scratch / "output")
    for name in names.read_text().split():
        with suppress(Exception):
            importlib.import_module(name)


class Sweep:
    """One command, its folder, and what must be in it at the end.

    Attributes:
        is_cleared: whether others delete what a killed command leaves: the cache's bound, or the system.

    Args:
        make: returns the command for a folder and a file in which it acknowledges steps.
        same: what a fault and a repeated command must not change.
        is_resumable: whether acknowledged steps are checkpoints.
        most: number of faults, spread over all operations; 0 for all.
    """

    is_cleared = False

    def __init__(self, scratch: Path, make: Callable, same: Callable, *, is_resumable: bool, most: int = 0):
        self.scratch, self.is_resumable, self.most = scratch, is_resumable, most
        self.out, self.acknowledged = scratch / "out", scratch / "acknowledged"
        self.action, self.same = make(self.out, self.acknowledged), same

    def run(self, fault: faulty_disk.Fault) -> dict[str, object]:
        """Strike one operation after another; return counts and problems."""
        began_at, codes, problems = time.monotonic(), Counter(), []
        load_modules(self.action, self.scratch)
        self._reset()
        total = faulty_disk.num_operations(self.action, fault, self.out, self.scratch)
        truth = self.same(self.out)
        numbers: Iterator[int] = iter(faulty_disk.spread(total, self.most) if self.most else count(1))
        self._reset()
        for struck in faulty_disk.sweep(self.action, fault, self.out, self.scratch, numbers=numbers):
            codes[struck.code] += 1
            said = [*struck.problems(), *self._after(truth, struck)]
            problems += [f"{struck.operation.replace(str(self.scratch), '')}: {problem}" for problem in said]
            self._reset()
        seconds = round(time.monotonic() - began_at)
        counts = {"operations": total, "struck": sum(codes.values()), "codes": dict(codes)}
        return {**counts, "seconds": seconds, "problems": problems}

    def kill_at_random(self, kills: int, *, latest: float) -> dict[str, object]:
        """Kill the command at random moments and repeat it until it ends; begin anew until all are made.

        Args:
            latest: the last of these moments, in durations of a command that nothing strikes.
        """
        output, draws, problems = self.scratch / "output", random.Random(0), []
        load_modules(self.action, self.scratch)
        self._reset()
        began_at = time.monotonic()
        assert in_a_fork(self.action, output) == 0, output.read_text()
        truth, took_s = self.same(self.out), time.monotonic() - began_at
        self._reset()
        num_kills, num_ends, num_halves = 0, 0, 0

        while num_kills < kills or self.out.exists():
            after_s = draws.uniform(0, latest * took_s) if num_kills < kills else None
            code = in_a_fork(self.action, output, kill_after_s=after_s)
            if code == -signal.SIGKILL:
                num_kills += 1
                num_halves += any(self.out.rglob(".tmp*"))
                problems += lost_steps(self.out, self.acknowledged) if self.is_resumable else []
                continue
            num_ends += 1
            there = self.same(self.out)
            different = sorted(
                name for name in truth.keys() | there.keys() if truth.get(name) != there.get(name)
            )
            problems += [f"exit code {code}: {output.read_text()[-600:]}"] if code else []
            problems += [f"not the same: {different}"] if different else []
            if any(self.out.rglob("metrics.jsonl")):  # runs remove what an earlier one has left
                problems += [f"left over: {path}" for path in self.out.rglob(".tmp*")]
            self._reset()
            faulty_disk.remove(self.scratch / "cache")
        counts = {"kills": num_kills, "ends": num_ends, "in_a_write": num_halves, "seconds": round(took_s, 1)}
        return {**counts, "problems": problems}

    def _reset(self) -> None:
        faulty_disk.remove(self.out)
        faulty_disk.remove(self.acknowledged)

    def _after(self, truth: dict[str, str], struck: Struck) -> Iterator[str]:
        """Compare what is there, and what the same command makes of it, with the truth."""
        yield from self._lost(truth, struck)
        self._age()
        output = self.scratch / "again"
        if in_a_fork(self.action, output):
            yield f"the same command ends with {output.read_text()[-600:]}"
            return
        there = self.same(self.out)
        if different := [name for name in truth.keys() | there.keys() if truth.get(name) != there.get(name)]:
            yield f"not the same: {sorted(different)}"
        left = [str(path.relative_to(self.out)) for path in self.out.rglob(".tmp*")]
        if left and not self.is_cleared:
            yield f"left over: {left}"

    def _lost(self, truth: dict[str, str], struck: Struck) -> Iterator[str]:
        if self.is_resumable:
            yield from lost_steps(self.out, self.acknowledged)

    def _age(self) -> None:
        """Let what is left over be two hours old, after which another command deletes it."""
        past = time.time() - 7200
        for path in self.out.rglob(".tmp*"):
            os.utime(path, (past, past), follow_symlinks=False)


class ResultSweep(Sweep):
    """A command that writes a result at once, and does not resume."""

    is_resumable = False

    def __init__(self, scratch: Path, writer: Writer, *, most: int):
        self.scratch, self.most, self.writer, self.is_cleared = scratch, most, writer, writer.is_cleared
        self.out, self.acknowledged = scratch / "out", scratch / "acknowledged"
        self.result, self.earlier = scratch / writer.result, {}
        self.action = self._command(writer.words)
        if writer.earlier:
            assert in_a_fork(self._command(writer.earlier), scratch / "output") == 0
            self.earlier = self.same(self.out)
            self.out.rename(scratch / "earlier")

    def _command(self, words: list[object]) -> Callable[[], int]:
        return command([word.format(out=self.out) for word in map(str, words)])

    def same(self, out: Path) -> dict[str, str]:
        there = files_of(self.result, self.writer.names + self.writer.appended)
        return there | digests(self.writer.uploads())

    def _reset(self) -> None:
        faulty_disk.remove(self.result)
        super()._reset()
        self.writer.clear()
        if self.writer.earlier:
            shutil.copytree(self.scratch / "earlier", self.out, dirs_exist_ok=True)

    def _lost(self, truth: dict[str, str], struck: Struck) -> Iterator[str]:
        """Say if a file is neither as before the command nor as after it, or if the earlier ones are gone."""
        there = files_of(self.result, self.writer.names) | digests(self.writer.uploads())
        half = [name for name in there if there[name] not in (truth.get(name), self.earlier.get(name))]
        if half:
            yield f"half written: {half}"
        elif self.earlier and there not in (self.earlier, truth):
            yield f"neither the earlier files nor the new ones: {sorted(there)}"


def sweep_of(what: str, scratch: Path, photos: str) -> Sweep:
    """Return the sweep of a writer by its name."""
    most = faulty_disk.MOST_FAULTS
    if what == "saves":
        # Of others there may be more: a deletion that was cut off.
        names = ("checkpoints/step_0000009/*", "metrics.jsonl", "recipe.toml")
        return Sweep(
            scratch,
            lambda out, acknowledged: lambda: write_saves(out, acknowledged),
            lambda out: files_of(out, names),
            is_resumable=True,
            most=0,
        )
    if what == "run":
        return Sweep(
            scratch,
            lambda out, acknowledged: acknowledging(command([*run_words(photos), out]), acknowledged),
            fingerprint,
            is_resumable=True,
            most=most,
        )
    if what in RUNS_OF_RUNS or what == "http":
        words = [*words_of_runs(what, photos), "--out"]
        return Sweep(
            scratch,
            lambda out, acknowledged: acknowledging(command([*words, out]), acknowledged),
            results_of,
            is_resumable=what == "http",
            most=most,
        )
    if what.startswith("shard-"):  # -0 or -1, the process whose disk fails
        words = [*run_words(photos), scratch / "out", "--shard"]
        action = of_two_processes(words, int(what[-1]), scratch)
        return Sweep(
            scratch,
            lambda out, acknowledged: acknowledging(action, acknowledged),
            weights_and_metrics,
            is_resumable=True,
            most=-(-most // 4),  # they take four times as long as others
        )
    return ResultSweep(scratch, writer(what, scratch, photos), most=most)


RUNS_OF_RUNS = ("selection", "side-by-side", "pretrain-selection", "students")


def words_of_runs(what: str, data: str) -> list[object]:
    """Return the command line of a selection and repeated runs, or of a run on shards at an address."""
    selected = ("--lr", "0.001,0.02,0.05", "--set", "train.runs=2", "--set", "data.dev_fraction=0.25")
    start, network = SMALL[: -len(NETWORK)], NETWORK[: NETWORK.index("--lr")]
    words = [*start, *network]
    many = (*TRICKY[:-1], "train.save_every=1", "--dataset", data, "--steps", 5)
    match what:
        case "selection":
            return [*words, *selected, *many]
        case "side-by-side":
            return [*words, *selected, *many, "--arms-parallel", "--num-processes", 2]
        case "students":  # whose teacher sees larger images, mixed
            mixed = ("--set", "data.dev_fraction=0.25", "--set", "objective.mixup=0.5")
            start = ["distill", "--teacher", "demo", "--ckpt", "random", *network, "--lr", 0.001, *mixed]
            return [*start, *many]
        case "pretrain-selection":
            masked = ("loss=masked_patch", "patch_target=mean_color", "corrupted=0.5", "masked=0.8")
            more = [word for key in (*masked, "replaced=0.1") for word in ("--set", f"objective.{key}")]
            return ["pretrain", "--recipe", "pretrain/demo", *network, *selected, *many, *more]
    streamed = ("--set", "data.streaming=true", "--set", "data.shuffle_window=24")
    return [*words, "--lr", 0.02, *many[:-1], 30, *streamed, "--set", "data.num_classes=2"]


def slow(scratch: Path, photos: str) -> dict[str, object]:
    """Train on a disk whose every fsync and rename takes 0.3 s; compare with a fast one.

    Returns:
        The steps that were trained while each checkpoint was written, the problems and the exit codes.
    """
    longer = {8: 60, "train.save_every=3": "train.save_every=20"}
    words = [longer.get(word, word) for word in run_words(photos)]
    folders = (scratch / "fast", scratch / "slow")
    trained, acknowledged = scratch / "trained", scratch / "saved"
    save = checkpoint.save

    def num_steps(run_dir: Path) -> int:
        return (run_dir / "metrics.jsonl").read_bytes().count(b'"loss": ')

    def counted(run_dir: Path, what: checkpoint.Checkpoint, **options: object) -> list[Path]:
        before = num_steps(run_dir)
        left = save(run_dir, what, **options)
        acknowledge(trained, num_steps(run_dir) - before)
        return left

    def run() -> int:
        checkpoint.save = counted
        faulty_disk.arm(faulty_disk.SLOW, folders[1])
        return command([*words, folders[1]])()

    codes = [in_a_fork(command([*words, folders[0]]), scratch / "output"), in_a_fork(run, scratch / "output")]
    same = fingerprint(folders[0]) == fingerprint(folders[1])

    # Killed while the second checkpoint is written, and continued on a fast disk.
    killed = scratch / "killed"

    def run_and_die() -> int:
        faulty_disk.arm(faulty_disk.SLOW, killed)
        log = RunFolder.log

        def logged(folder: RunFolder, record: dict) -> None:
            log(folder, record)
            if record["step"] == 43:
                os.kill(os.getpid(), signal.SIGKILL)

        RunFolder.log = logged
        return acknowledging(command([*words, killed]), acknowledged)()

    codes.append(in_a_fork(run_and_die, scratch / "output"))
    problems = [] if same else ["not the same"]
    problems += lost_steps(killed, acknowledged)
    codes.append(in_a_fork(command([*words, killed]), scratch / "output"))
    problems += [] if fingerprint(folders[0]) == fingerprint(killed) else ["not the same after a kill"]
    during = [int(line) for line in trained.read_text().split()]
    return {"steps_during_saves": during, "codes": codes, "problems": problems}


def sizes(scratch: Path, photos: str) -> dict[str, object]:
    """Train with files limited to 20 sizes, up to that of the largest; then without a limit."""
    truth, out, acknowledged = scratch / "truth", scratch / "out", scratch / "acknowledged"
    words, codes, problems = run_words(photos), Counter(), []
    assert in_a_fork(command([*words, truth]), scratch / "output") == 0
    largest = max(path.stat().st_size for path in truth.rglob("*") if path.is_file())

    for number in range(20):
        size = round(largest * (number / 20) ** 2)

        def limited(size: int = size) -> int:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            return acknowledging(command([*words, out]), acknowledged)()

        code = in_a_fork(limited, scratch / "output")
        said = (scratch / "output").read_text()
        codes[code] += 1
        found = [*Struck(number, "", code, said).problems(), *lost_steps(out, acknowledged)]
        if in_a_fork(command([*words, out]), scratch / "again") or fingerprint(out) != fingerprint(truth):
            found.append("not the same")
        problems += [f"{size} bytes: {problem}" for problem in found]
        faulty_disk.remove(out)
        faulty_disk.remove(acknowledged)
    return {"largest": largest, "codes": codes, "problems": problems}


def main(what: str, fault: str, scratch: str, photos: str = "") -> None:
    """Run one sweep and print what came of it."""
    startup.load()
    match what:
        case "slow" | "sizes":
            result = {"slow": slow, "sizes": sizes}[what](Path(scratch), photos)
        case _ if fault.isdecimal():
            latest = 0.35 if what in (*RUNS_OF_RUNS, "http") else 1.0  # several kills until a run has ended
            result = sweep_of(what, Path(scratch), photos).kill_at_random(int(fault), latest=latest)
        case _:
            result = sweep_of(what, Path(scratch), photos).run(FAULTS[fault])
    print(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
