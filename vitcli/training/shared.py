"""What the runs of one command have in common: opened data with its decoded images, and the network.

Every run ends with the very bits of one that had nothing to share. No command of its own.
"""

import gc
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitcli.data.dataset import DataSet
from vitcli.data.image_cache import Memory, kept
from vitcli.data.split import Split
from vitcli.distributed import launch
from vitcli.recipe import Recipe
from vitcli.training.planning import Start
from vitcli.training.setup import MakeModel

SHARE_OF_MEMORY = 0.25  # of what is free, for images; divided among the processes of this machine


class SharedData:
    """Opens a data set once, and reads and decodes its images once as far as there is room.

    In the place of `data.DataSet`.
    """

    def __init__(self, processes_here: int):
        self.memory = Memory(launch.free_bytes() * SHARE_OF_MEMORY / processes_here)
        self._opened: dict[str, _KeptDataSet] = {}

    def __call__(self, name: str, **options: Any) -> DataSet:
        key = repr((name, options))
        if key not in self._opened:
            self._opened[key] = _KeptDataSet(name, memory=self.memory, **options)
        return self._opened[key]


class _KeptDataSet(DataSet):
    def __init__(self, name: str, *, memory: Memory, **options: Any):
        super().__init__(name, **options)
        self._memory = memory
        self._whole: dict[str, Split] = {}

    def open_whole(self, split: str) -> Split:
        if split not in self._whole:
            self._whole[split] = kept(super().open_whole(split), self._memory)
        return self._whole[split]


class SharedNetwork:
    """Makes the network once and sets it back for the next run: one reading of its file, one compilation.

    In the place of a `MakeModel`, which makes another where the recipe asks for another.
    """

    def __init__(self, make_model: MakeModel):
        self._make_model = make_model
        self._key: Any = None
        self._seed: int | None = None
        self._start: Start | None = None
        self._state: dict[str, Tensor] = {}

    def __call__(self, resolved: Recipe, split: Split) -> Start:
        key = (resolved.model, resolved.data.image_size, resolved.objective, split.num_classes)
        if key != self._key:
            self._start = None  # before another takes its memory
            self._start, self._key = self._make_model(resolved, split), key
            self._remember(self._start, resolved)
            return self._start
        gc.collect()  # with the run before go its hooks on the parameters
        if self._start.origin is None and resolved.train.seed != self._seed:  # fresh weights are of a seed
            self._remember(self._make_model(resolved, split), resolved)
        self._start.model.load_state_dict(self._state)
        self._start.model.zero_grad(set_to_none=True)
        return replace(self._start, notes=[])

    def _remember(self, start: Start, resolved: Recipe) -> None:
        self._state = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
        self._seed = resolved.train.seed
