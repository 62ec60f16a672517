"""Power losses under plain POSIX rules: what no fsync has forced to disk may be gone.

A disk is imagined beside the real folder: an fsync of a file stores its bytes, one of a folder the names in
it. Before each fsync of the writer, and after each save that it has acknowledged, the power goes: there is
the imagined disk alone, or all names with the bytes of synced files (the others are empty).
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from vitcli import recipe as recipes
from vitcli.output.run_folder import RunFolder, open_run
from vitcli.training import checkpoint


class Disk:
    """What is on disk of all below `root`, whose own name is there from the beginning."""

    def __init__(self, root: Path):
        self.root = root
        self.names: dict[int, dict[str, int]] = {root.stat().st_ino: {}}  # of folders, by their inodes
        self.bytes: dict[int, bytes] = {}
        self.open: list[int] = []  # handles of all that was synced, so that no inode is used again

    def sync(self, path: Path) -> None:
        self.open.append(os.open(path, os.O_RDONLY))
        inode = path.stat().st_ino
        if path.is_dir():
            self.names[inode] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.bytes[inode] = path.read_bytes()

    def after_power_loss(self, out: Path, *, keeps_names: bool) -> None:
        """Write what is left into a new folder."""
        if keeps_names:
            shutil.copytree(self.root, out, copy_function=self._copy_synced)
        else:
            self._write(self.root.stat().st_ino, out)

    def _copy_synced(self, source: str, target: str) -> None:
        Path(target).write_bytes(self.bytes.get(os.stat(source).st_ino, b""))

    def _write(self, inode: int, path: Path) -> None:
        if inode in self.bytes:
            path.write_bytes(self.bytes[inode])
            return
        path.mkdir()  # or a file without bytes, which is as good as none
        for name, below in self.names.get(inode, {}).items():
            self._write(below, path / name)


needs_names = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="handles have no names here")


@pytest.fixture
def lose_power(tmp_path, monkeypatch) -> Iterator[Callable]:
    """Give a function that runs a writer in a new folder and calls a check on what each power loss leaves."""
    fsync, disks = os.fsync, []

    def each(write: Callable[[Path], Iterator[int]], check: Callable[[Path, int], None]) -> int:
        root, acknowledged, num_losses = tmp_path / f"disk-{len(disks)}", 0, 0
        root.mkdir()
        disk = Disk(root)
        disks.append(disk)

        def lose() -> None:
            nonlocal num_losses
            for keeps_names in (False, True):
                left = tmp_path / "left"
                disk.after_power_loss(left, keeps_names=keeps_names)
                check(left, acknowledged)
                shutil.rmtree(left)
                num_losses += 1

        def recorded(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if path == root or root in path.parents:
                lose()
                disk.sync(path)
            fsync(handle)

        monkeypatch.setattr(os, "fsync", recorded)
        for step in write(root):
            acknowledged = step
            lose()
        monkeypatch.setattr(os, "fsync", fsync)
        return num_losses

    yield each
    for handle in (handle for disk in disks for handle in disk.open):
        os.close(handle)


def opened(root: Path, photos: str) -> RunFolder:
    overrides = {"data.dataset": str(photos), "model.name": "ViT-demo/8"}
    recipe = recipes.load("finetune/default", (), overrides, training=False)
    return open_run(root / "runs" / "mine", recipe, [], overwrite=False)  # neither is there before


@needs_names
@pytest.mark.parametrize("keep", [1, 2])
def test_no_power_loss_takes_a_checkpoint_that_was_acknowledged(lose_power, keep, photos):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def write(root: Path) -> Iterator[int]:
        folder = opened(root, photos)
        run_dir = folder.path
        for step in range(1, 6):
            folder.log({"step": step})
            saved = checkpoint.Checkpoint(
                step,
                checkpoint.copy_tensors(model, optimizer, None),
                {"metrics_bytes": folder.metrics_bytes()},
            )
            checkpoint.save(run_dir, saved, keep=keep, milestone_every=0)
            yield step
        folder.close()

    def check(left: Path, acknowledged: int) -> None:
        run_dir = left / "runs" / "mine"
        found, _ = checkpoint.find_newest(run_dir)
        assert (found or 0) >= acknowledged
        if found:
            saved = checkpoint.read(run_dir, found)
            assert (run_dir / "metrics.jsonl").stat().st_size >= saved.state["metrics_bytes"]

    assert lose_power(write, check) > 80


@needs_names
def test_where_a_run_is_finished_no_line_of_its_metrics_is_lost(lose_power, photos):
    def write(root: Path) -> Iterator[int]:
        folder = opened(root, photos)
        folder.log({"step": 1, "eval": {"top1": 0.5}})
        folder.write_summary({"step": 1})
        yield 1
        folder.close()

    def check(left: Path, acknowledged: int) -> None:
        run_dir = left / "runs" / "mine"
        is_finished = (run_dir / "summary.json").exists() and (run_dir / "summary.json").stat().st_size
        assert is_finished or not acknowledged
        if is_finished:
            assert (run_dir / "metrics.jsonl").read_text() == '{"step": 1, "eval": {"top1": 0.5}}\n'

    assert lose_power(write, check) > 10
