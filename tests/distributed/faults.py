"""Faults for a process of a run. A test makes this file the `sitecustomize` of the processes that it starts.

VIT_FAULT = "rank phase kind call mark": on its n-th call, the function of that phase in that process writes
the time into the file `mark` and then does what `kind` says.
"""

import os
import sys
import time
from importlib.util import find_spec

PHASES = {  # a function that each process of a run calls in that phase
    "start-up": ("vitcli.distributed.runtime", "start"),
    "loading": ("vitcli.data.loader", "open_example"),  # in a loader thread
    "forward": ("vitcli.training.loop", "to_model_range"),
    "evaluation": ("vitcli.evaluation.metrics", "example_losses"),
    "save": (
        "vitcli.training.checkpoint",
        "write_manifest",
    ),  # in the first process's thread that saves
    "backward": ("accelerate.accelerator", "Accelerator.backward"),  # of the loss that it is given
    "results": ("vitcli.training.run", "write_results"),  # in the first process
    "snapshot": ("vitcli.training.state", "TrainingState.snapshot"),
}


FACTORS = {"nan": float("nan"), "inf": float("inf")}  # instead of a kind: of what the function computes


def strike(kind: str, mark: str):
    """Do to this process what the kind says."""
    with open(mark, "x") as file:
        file.write(str(time.time()))
    match kind:
        case "SIGKILL" | "SIGSTOP" | "SIGTERM":
            os.kill(os.getpid(), getattr(__import__("signal"), kind))
        case "raise":
            raise RuntimeError("a fault of the test")
        case "os._exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(0)
        case "sleep":
            while True:
                time.sleep(1000)


class Injector:
    """An import hook that replaces the function of a phase once its module is loaded."""

    def __init__(self, phase: str, kind: str, call: str, mark: str):
        self.module, self.name = PHASES[phase]
        self.kind, self.calls_left, self.mark = kind, int(call), mark

    def find_spec(self, name: str, path=None, target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        load = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (load(module), self.replace_in(module))
        return spec

    def replace_in(self, module) -> None:
        *outer, name = self.name.split(".")
        owner = getattr(module, outer[0]) if outer else module
        function = getattr(owner, name)

        def faulty(*args, **keywords):
            self.calls_left -= 1
            if self.calls_left:
                return function(*args, **keywords)
            if self.kind in FACTORS:
                *others, values = args if name == "backward" else (function(*args, **keywords),)
                values = values * FACTORS[self.kind]
                return function(*others, values) if name == "backward" else values
            strike(self.kind, self.mark)
            return function(*args, **keywords)

        setattr(owner, name, faulty)


if "VIT_FAULT" in os.environ:
    rank, *fault = os.environ["VIT_FAULT"].split(" ")
    if os.environ.get("RANK") == rank:
        sys.meta_path.insert(0, Injector(*fault))
