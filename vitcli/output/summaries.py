"""The JSON objects that commands write into their folders and `vit report` reads: one model for both.

A model has a field for every key that a report reads, and the names of the others. Reading refuses a value of
the wrong type, but neither an unknown key nor a missing one that has a default. A score has its label and
format here, for every screen, table and card (see `scores.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from vitcli.errors import DataError
from vitcli.io.files import read_regular
from vitcli.output.atomic import unreadable

Fraction = Annotated[FiniteFloat, Field(ge=0, le=1)]
Score = Fraction | None  # None where a result has none
Count = Annotated[int, Field(ge=0)]
Amount = Annotated[FiniteFloat, Field(ge=0)]
Resolution = int | list[int]


class FileModel(BaseModel):
    """An object of a JSON file.

    Attributes:
        UNREAD: further keys that are written; a wrong value there does not refuse a folder.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)
    UNREAD: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def written(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the object to write after a check that its keys are those of the model.

        The values are validated in the tests only: a run that has ended is worth its summary even if its loss
        is infinite.
        """
        known = cls.model_fields.keys() | cls.UNREAD
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        assert required <= values.keys() <= known, (
            cls.__name__,
            required - values.keys(),
            values.keys() - known,
        )
        return values


@dataclass(frozen=True)
class ScoreFormat:
    """How a score is shown, and where.

    Attributes:
        label: of its row or column.
        form: of the number; PERCENT of a fraction, which tables have without the sign.
        of: what is scored: "labels" of images; "classes", the mean over them, where images have one label;
            "multilabel", images with several; "real", ReaL labels; "numbers"; "patches"; or "all".
        detail: small print of its column: its unit, or what it is of.
        rows: which results for a terminal have a row of it: "brief", all of them; "full" ones; "", none.
        in_report: whether the table of evaluations in a report has a column of it.
    """

    label: str
    form: str = "{:.4g}"
    of: str = "labels"
    detail: str = ""
    rows: str = ""
    in_report: bool = False


PERCENT, DIGITS = "{:.2%}", "{:.4f}"


class Scores(FileModel):
    """Scores of one class or several labels per image, of numbers, and of masked patches."""

    top1: Annotated[Score, ScoreFormat("top-1", PERCENT, rows="brief")] = None
    top5: Annotated[Score, ScoreFormat("top-5", PERCENT, rows="brief", in_report=True)] = None
    real_top1: Annotated[Score, ScoreFormat("ReaL", PERCENT, "real", rows="brief", in_report=True)] = None
    balanced_accuracy: Annotated[Score, ScoreFormat("balanced", PERCENT, "classes", in_report=True)] = None
    precision_macro: Annotated[Score, ScoreFormat("precision", PERCENT, "classes")] = None
    recall_macro: Annotated[Score, ScoreFormat("recall", PERCENT, "classes")] = None
    f1_macro: Annotated[Score, ScoreFormat("F1", PERCENT, "classes", rows="full", in_report=True)] = None
    precision_weighted: Annotated[Score, ScoreFormat("precision", PERCENT, "classes", "weighted")] = None
    recall_weighted: Annotated[Score, ScoreFormat("recall", PERCENT, "classes", "weighted")] = None
    f1_weighted: Annotated[Score, ScoreFormat("F1", PERCENT, "classes", "weighted")] = None
    auroc_macro: Annotated[Score, ScoreFormat("AUROC", DIGITS, "classes", in_report=True)] = None
    aupr_macro: Annotated[Score, ScoreFormat("AUPR", DIGITS, "classes")] = None
    mean_ap: Annotated[Score, ScoreFormat("mAP", PERCENT, "multilabel", rows="brief", in_report=True)] = None
    f1_at_thresholds: Annotated[
        Score, ScoreFormat("F1", PERCENT, "multilabel", "at thresholds", rows="brief", in_report=True)
    ] = None
    loss: Annotated[FiniteFloat | None, ScoreFormat("loss", DIGITS, "all", "nats", in_report=True)] = None
    ece: Annotated[Score, ScoreFormat("ECE", PERCENT, detail="%", in_report=True)] = None
    brier: Annotated[FiniteFloat | None, ScoreFormat("Brier", DIGITS, in_report=True)] = None
    mae: Annotated[Amount | None, ScoreFormat("MAE", of="numbers", rows="brief")] = None
    rmse: Annotated[Amount | None, ScoreFormat("RMSE", of="numbers", rows="full")] = None
    r2: Annotated[FiniteFloat | None, ScoreFormat("R2", of="numbers", rows="brief")] = None
    patch_accuracy: Annotated[Score, ScoreFormat("patches", PERCENT, "patches", rows="brief")] = None
    most_frequent_color: Annotated[Score, ScoreFormat("majority class", PERCENT, "patches")] = None

    @property
    def are_errors(self) -> bool:
        """Whether they are those of a regression, which has no accuracy."""
        return self.mae is not None


class RunScores(Scores):
    """Scores of one of several runs, each with its own seed: of images, or of masked patches."""

    seed: int


class Probe(FileModel):
    """Few-shot accuracy at a step of training; `runs` are those of its draws, or of several runs."""

    UNREAD = frozenset({"runs", "images_seen", "exaflops"})

    dataset: str
    shots: Count
    top1: Fraction


class ResourceUse(FileModel):
    """Throughput and time of all processes together, and the peak memory of the largest."""

    images_per_s: Amount | None = None
    elapsed_s: Amount | None = None
    exaflops: Amount | None = None
    peak_memory_gib: Amount | None = None
    num_processes: Count | None = None
    precision: str | None = None


class ResultSummary(ResourceUse):
    """The model, the data set and the resources of one result.

    Attributes:
        eval_fingerprint: of the images that were scored, see `Split.fingerprint`.
    """

    model: str
    dataset: str
    eval_split: str = ""
    eval_fingerprint: str | None = None
    resolution: Resolution

    @property
    def split(self) -> str:
        """The split alone, "test" of "demo, split test"."""
        return self.eval_split.rpartition(", split ")[2]


class FoldScores(FileModel):
    """Scores of one fold on the images that it was trained without; `chosen` from values to choose from."""

    UNREAD = frozenset({"loss", "chosen"})

    top1: Fraction
    num_examples: Count


class FrozenScores(FileModel):
    """Accuracy of the features before training, in closed form, over folds of groups and over random ones."""

    by_groups: Fraction
    at_random: Fraction


class FoldsSummary(FileModel):
    """Mean and std of the accuracy over folds, and how groups of data.group_column change it."""

    count: Count
    mean: Fraction
    std: Fraction
    runs: list[FoldScores] = []
    group_column: str | None = None
    num_groups: Count | None = None
    frozen: FrozenScores | None = None


class PredictedNumber(FileModel):
    """The number that a regression predicts."""

    UNREAD = frozenset({"mean", "std"})

    name: str


class AveragedRun(FileModel):
    """A run of an average; its weight in it."""

    weight: FiniteFloat


class AverageRecord(FileModel):
    """What was made of several runs: an average, or the best of them where none was accepted.

    Attributes:
        accepted: by the paired test; None without images to test on.
        top1: of what is delivered.
    """

    delivered: Literal["uniform", "greedy", "run"]
    accepted: bool | None = None
    top1: Fraction
    runs: list[AveragedRun] = []


class TrainingSummary(ResultSummary, Scores):
    """summary.json of `vit finetune` and `vit pretrain`: of one run, or the means over the runs of a sweep.

    Attributes:
        choices, chosen: values by recipe key; of each trial its scores on the dev split, too.
        intervals: 95 % intervals of the accuracies over the images; of several runs, that of one with their
            mean.
        num_held_out_seen: images to report on that the checkpoint it started from, or a teacher, was
            trained on.
        num_choice_seen: images of the dev split that the checkpoint it started from was trained on.
        eval_precision: of the scores, where it is not fp32.
        folds: where the scores are those of models that have not seen the images.
        target: of a regression.
        average: of several runs, where the weights are made of theirs.
    """

    UNREAD = frozenset({
        "run_dir", "train_split", "num_train_examples", "num_classes", "preprocessing", "dev_top1_by_lr",
        "num_skipped_images", "skipped_images", "weights", "num_left_out_files", "left_out_files",
        "classes_not_held_out", "num_held_out_copies", "epochs", "ckpt_fetched_from",
        "thresholds_chosen_on", "license", "findings",
        "probe_top1", "finetuned_top1", "delivered", "delivered_alpha", "interpolation", "choice_split",
        "num_choice_examples", "probe_head", "refit", "diverged", "best_step", "belief",
    })  # fmt: skip

    command: Literal["finetune", "pretrain"]
    num_eval_examples: Count | None = None
    ckpt: str | None = None
    steps: Count
    batch_size: Count
    lr: FiniteFloat | None = None
    top1_std: Fraction | None = None
    intervals: dict[str, list[FiniteFloat]] = {}
    runs: list[RunScores] = []
    fewshot: Probe | None = None
    choices: list[dict[str, Any]] = []
    chosen: dict[str, Any] | None = None
    distill: dict[str, Any] | None = None
    num_held_out_seen: Count | None = None
    num_choice_seen: Count | None = None
    eval_precision: str | None = None
    notes: list[str] = []
    folds: FoldsSummary | None = None
    target: PredictedNumber | None = None
    average: AverageRecord | None = None


class ShotScores(FileModel):
    """Accuracies of the draws with one number of images per class."""

    UNREAD = frozenset({"chosen", "interval"})

    mean: Fraction
    std: Fraction | None = None
    runs: list[Fraction]


class FewshotSummary(ResultSummary):
    """summary.json of `vit fewshot`; `shots` by the number of images per class."""

    UNREAD = frozenset({
        "run_dir", "numerics", "train_split", "num_classes", "preprocessing", "preprocessing_from", "layer",
        "feature_dim", "l2", "balance", "seeds", "cached_rows", "computed_rows", "forecast",
        "num_skipped_images", "skipped_images", "draws_from", "classifier", "num_left_out_files",
        "left_out_files", "next",
    })  # fmt: skip

    command: Literal["fewshot"]
    ckpt: str | None = None
    num_test_examples: Count | None = None
    notes: list[str] = []
    shots: dict[Annotated[str, Field(pattern=r"^[1-9]\d{0,8}$")], ShotScores]


class VtabTask(FileModel):
    """The score of one task; None until its run has ended."""

    UNREAD = frozenset({"run_dir"})

    group: str
    top1: Fraction | None = None
    num_eval_examples: Count | None = None


class VtabSummary(FileModel):
    """summary.json of the tasks of VTAB; a mean is None until all its tasks have a score."""

    UNREAD = frozenset({"command", "dataset", "run_dir", "num_finished", "mean_of_finished"})

    tasks: dict[str, VtabTask]
    groups: dict[str, Fraction | None] = {}
    top1: Fraction | None = None


LEAST_CALIBRATED = 50  # images of a reliability diagram; with fewer, every bin would be chance


class Bins(FileModel):
    """A reliability diagram: M bins between M + 1 edges."""

    edges: list[Fraction]
    counts: list[Count]
    confidence: list[Fraction]
    accuracy: list[Fraction]

    @model_validator(mode="after")
    def _is_whole(self) -> "Bins":
        if not len(self.edges) - 1 == len(self.counts) == len(self.confidence) == len(self.accuracy) > 0:
            raise ValueError("the bins and their edges do not go together")
        return self


class ResolutionScore(Scores):
    resolution: Resolution


# Keys of an evaluation by weights that store a temperature and prediction sets.
OF_CALIBRATION = frozenset({
    "temperature", "ece_at_temperature", "nll_at_temperature", "reliability_at_temperature", "coverage",
    "mean_set_size", "prediction_sets", "calibrated_on",
})  # fmt: skip


class Evaluation(ResultSummary, Scores):
    """evaluation.json of one `vit evaluate`; ReaL, a class map, --res and --assert add keys of their own.

    Attributes:
        target: of weights that predict a number.
    """

    UNREAD = frozenset({
        "numerics", "preprocessing", "preprocessing_from", "classes_mapped_by_name", "num_skipped_images",
        "per_label", "thresholds_chosen_on", "skipped_images", "nll", "real_labels_by", "competing_classes",
        "num_outside_map", "mistakes", "assertions", "asked", "saved_predictions", "out", "absent_classes",
        "num_left_out_files", "left_out_files", "mae_of_mean", *OF_CALIBRATION,
    })  # fmt: skip

    command: Literal["evaluate"]
    ckpt: str
    num_classes: Count = 0
    num_eval_examples: Count
    intervals: dict[str, list[FiniteFloat] | None] = {}
    num_real_examples: Count | None = None
    class_map: str | None = None
    target: PredictedNumber | None = None
    tta: str | None = None
    per_class: dict[str, Any] | None = None
    reliability: Bins | None = None
    resolutions: list[ResolutionScore] = []
    notes: list[str] = []

    @model_validator(mode="after")
    def _is_scored(self) -> "Evaluation":
        if self.top1 is None and not self.are_errors:
            raise ValueError("it has neither an accuracy nor an error")
        return self


class Mistake(FileModel):
    """A wrong prediction, and a small JPEG of its image in base64."""

    UNREAD = frozenset({"row"})

    place: str
    label: str
    predicted: str
    probability: Fraction
    thumbnail: Annotated[str, Field(pattern=r"^/9j/[A-Za-z0-9+/]*=*$", max_length=100_000)]


class Mistakes(FileModel):
    """mistakes.json of a run or an evaluation, the most confident mistake first."""

    mistakes: list[Mistake]


class Evaluations(FileModel):
    """evaluation.json of several checkpoints or data sets."""

    command: Literal["evaluate"]
    evaluations: list[Evaluation]


def read(path: Path, model: type[FileModel]) -> Any:
    """Read a JSON file as an instance of the model.

    Raises:
        DataError: it is damaged, or another program's.
        MachineError: it cannot be read.
    """
    try:
        return model.model_validate_json(read_regular(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path.name} is damaged or another program's: {at + ': ' if at else ''}{first['msg']}",
            where=str(path),
            fix="run the command that made the folder again, or leave the folder out",
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error
