"""What a report takes from the files of a run folder: each key of the right type, or the file is refused.

Other keys are left to others; a new one of a later version does no harm.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[FiniteFloat, Field(ge=0)]
Resolution = int | list[int]


class FileModel(BaseModel):
    """What a file says; of the right types, or it is not taken."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class Repeat(FileModel):
    """One of several runs with their own seeds."""

    seed: int
    top1: Share | None = None
    loss: FiniteFloat | None = None


class Probe(FileModel):
    dataset: str
    shots: Count
    top1: Share


class ResourceUse(FileModel):
    """What a run has used."""

    images_per_s: Amount | None = None
    elapsed_s: Amount | None = None
    exaflops: Amount | None = None
    peak_memory_gib: Amount | None = None
    num_processes: Count | None = None
    precision: str | None = None


class TrainingSummary(ResourceUse):
    command: Literal["finetune", "pretrain"]
    model: str
    ckpt: str | None = None
    dataset: str
    eval_split: str = ""
    resolution: Resolution
    steps: Count
    batch_size: Count
    lr: FiniteFloat | None = None
    top1: Share | None = None
    top1_std: Share | None = None
    patch_accuracy: Share | None = None
    loss: FiniteFloat | None = None
    runs: list[Repeat] = []
    fewshot: Probe | None = None
    choices: list[dict[str, Any]] = []
    chosen: dict[str, Any] | None = None
    num_eval_examples: Count | None = None


class Shots(FileModel):
    mean: Share
    std: Share | None = None
    runs: list[Share] = []


class FewshotSummary(ResourceUse):
    command: Literal["fewshot"]
    model: str
    ckpt: str | None = None
    dataset: str
    eval_split: str = ""
    resolution: Resolution
    shots: dict[Annotated[str, Field(pattern=r"^[1-9]\d{0,8}$")], Shots]
    classifier: str = ""


class VtabTask(FileModel):
    group: str
    top1: Share | None = None


class VtabSummary(FileModel):
    tasks: dict[str, VtabTask]
    groups: dict[str, Share | None] = {}
    top1: Share | None = None
    mean_of_finished: Share | None = None


class ClassScore(FileModel):
    top1: Share
    num_examples: Count


class Bins(FileModel):
    """A reliability diagram: M bins between M + 1 edges."""

    edges: list[Share]
    counts: list[Count]
    confidence: list[Share]
    accuracy: list[Share]

    @model_validator(mode="after")
    def _is_whole(self) -> "Bins":
        if not len(self.edges) - 1 == len(self.counts) == len(self.confidence) == len(self.accuracy) > 0:
            raise ValueError("the bins and their edges do not go together")
        return self


class OneResolution(FileModel):
    resolution: Resolution
    top1: Share
    top5: Share


class Evaluation(ResourceUse):
    command: Literal["evaluate"]
    ckpt: str
    model: str
    dataset: str
    eval_split: str = ""
    resolution: Resolution
    num_classes: Count
    num_eval_examples: Count
    top1: Share
    top5: Share
    loss: FiniteFloat
    ece: Share
    brier: FiniteFloat
    intervals: dict[str, list[Share] | None] = {}
    real_top1: Share | None = None
    class_map: str | None = None
    per_class: dict[str, ClassScore] | None = None
    reliability: Bins | None = None
    resolutions: list[OneResolution] = []


class Evaluations(FileModel):
    command: Literal["evaluate"]
    evaluations: list[Evaluation]
