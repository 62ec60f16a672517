"""The schema of a recipe: every section, key, type and default; closed, strict and immutable.

Studies, the rows of the paper's tables and class maps build their own schemas from the types defined here.
"""

from functools import cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from vitcli.io.credentials import without_credentials

ONE_OF, OTHER = "<or> ", "<other>"  # the branches of `either`; they appear in pydantic's paths, in no file
# Keys on which no accuracy depends: how fast a run is, when it gives up and what it says besides.
WITHOUT_EFFECT = frozenset({"data.cache", "train.stall_minutes", "fewshot.forecast"})
STALL_MINUTES = 10.0  # also for commands whose recipe has no section train
PROBE: Final = "probe"
REFIT: Final = "refit"  # as model.head: the closed form of few-shot classification, before or after
WEIGHTS: Final = "weights"  # in the place of a value of [data]: what the checkpoint states about its images


def either(other_if: type | UnionType | str, other_is: str) -> GetPydanticSchema:
    """Let the class of a value, or a word that it is, decide between the two types of a union, `one | other`.

    Unlike a plain union it reports a mistake once, not once for each branch. `other_is` describes the other
    type where a value is of neither.
    """
    tag = f"{ONE_OF}{other_is}"

    def branch_of(value: Any) -> str:
        is_other = value == other_if if isinstance(other_if, str) else isinstance(value, other_if)
        return OTHER if is_other else tag

    def schema(union: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        one, other = get_args(union)
        branch = Discriminator(branch_of)
        return handler(Annotated[Annotated[one, Tag(tag)] | Annotated[other, Tag(OTHER)], branch])

    return GetPydanticSchema(schema)


def one_if(*kinds: type) -> BeforeValidator:
    """Let a list be written as its only item, where that is of one of these classes."""
    return BeforeValidator(lambda value: [value] if isinstance(value, kinds) else value)


NON_EMPTY = Field(strict=False, min_length=1)  # of a tuple; not strict: TOML has lists only
OR_WEIGHTS = either(WEIGHTS, f'"{WEIGHTS}"')
Count = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveOrZero = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
UnitInterval = Annotated[float, Field(ge=0, le=1)]
UnitIntervalOpen0 = Annotated[float, Field(gt=0, le=1)]
CropFraction = Annotated[float, Field(ge=0.05, le=1)]  # with less the whole image would have no end
MaxMinutes = Annotated[float, Field(gt=0, le=525_600)]  # a year
StallMinutes = Annotated[float, Field(ge=0.25, le=1440)]  # at least three beats of `distributed.peers`
PercentText = Annotated[str, Field(pattern=r"^(100|\d{1,2}(\.\d+)?)%$")]
PerChannel = Annotated[tuple[float, float, float], Field(strict=False)]
PerChannelOrWeights = Annotated[PerChannel | Literal["weights"], OR_WEIGHTS]
FractionRange = Annotated[tuple[UnitIntervalOpen0, UnitIntervalOpen0], Field(strict=False)]
PositiveRange = Annotated[tuple[Positive, Positive], Field(strict=False)]
Betas = Annotated[tuple[Fraction, Fraction], Field(strict=False)]
RandAugment = Annotated[tuple[Count, Positive], Field(strict=False)]
HeightAndWidth = Annotated[tuple[Count, Count], Field(strict=False)]
ImageSize = Annotated[Count | HeightAndWidth, either(list | tuple, "[height, width]")]
StepsOrPercent = Annotated[NonNegativeInt | PercentText, either(str, 'a fraction such as "10%"')]
Counts = Annotated[tuple[Count, ...], NON_EMPTY, one_if(int)]
Ckpts = Annotated[tuple[str, ...], NON_EMPTY, one_if(str)]
NumberOrSweep = Annotated[Positive | Literal["sweep"], either(str, '"sweep"')]
BlocksOrBackbone = Annotated[NonNegativeInt | Literal["backbone"], either(str, '"backbone"')]
Gelu = Literal["auto", "tanh", "erf"]
Compute = Literal["auto", "fp32", "bf16", "fp16"]


def key(description: str, default: Any = ...) -> Any:
    """Declare a key with the meaning that `vit recipes schema` shows; required without a default."""
    return Field(default, description=description)


class Section(BaseModel, strict=True, frozen=True, extra="forbid", allow_inf_nan=False):
    """A table of a TOML file: unknown keys are refused, no value is coerced, nothing can be reassigned."""


class WithAddress(Section):
    """A section with an address in it, of which a password or signature is kept elsewhere."""

    @field_validator("ckpt", "dataset", "probe", check_fields=False)
    @classmethod
    def _keep_credentials_apart(cls, name: str | None) -> str | None:
        return name and without_credentials(name)


class Model(WithAddress):
    """The network; with a checkpoint, what the checkpoint's own metadata leaves open."""

    name: str | None = key("the paper's name (ViT-B/16; paper, Table 1) or any timm model name", None)
    ckpt: str | None = key(
        "initial weights: run folder, file, name, Hub id, address, or demo (docs/weights-and-export.md)", None
    )
    head: Literal["zero", "keep", "probe", "refit"] = key(
        "of a fine-tuned checkpoint: zeros (paper, 3.2), its own for equal classes, the closed form of vit "
        "fewshot (probe), or zeros that the closed form joins after the last step (docs/finetune.md)",
        "zero",
    )
    head_layers: NonNegativeInt = key(
        "of head = refit: it reads this many of the last blocks where their closed form is ahead, left out", 0
    )
    dropout: Fraction = key("probability, after the position embedding and dense layers (paper, B.1)", 0.0)
    drop_path: Fraction = key("probability of skipping the last block, linear from 0 (AugReg)", 0.0)
    patch_dropout: Fraction = key("fraction of patches left out of each training image (2208.07220)", 0.0)
    freeze: BlocksOrBackbone = key(
        'frozen layers: the embedding and this many blocks, or "backbone": all but the head', 0
    )
    lora_rank: NonNegativeInt = key(
        "train low-rank corrections of the blocks' linear layers alone (arXiv 2106.09685); 0: all weights", 0
    )
    lora_alpha: Positive | None = key("of these: they count alpha / rank times; by default 2", None)
    grad_checkpointing: bool = key("recompute activations in the backward pass: less memory, slower", False)
    pre_logits: bool = key("tanh layer before the pre-training head (paper, 3.1 and D.3)", False)
    gelu: Gelu = key("form of GELU; auto: that of the weights, tanh for fresh ones; timm's is erf", "auto")
    classifier: Literal["token", "gap"] = key(
        "input of the head of a fresh network: class token or mean of the tokens (paper, D.3)", "token"
    )
    posemb: Literal["none", "1d", "2d", "relative", "sincos2d"] = key(
        "position embedding of a fresh network (paper, Table 8; sincos2d: arXiv 2205.01580)", "1d"
    )
    posemb_at: Literal["stem", "every_layer", "every_layer_shared"] = key(
        "where a fresh network adds it (paper, Table 8)", "stem"
    )
    layers: Count | None = key(
        "of a fresh transformer, if not as named (paper, Figure 8); of a checkpoint, the first to keep",
        None,
    )
    hidden: Count | None = key("width D of a fresh transformer; MLP 4 D, heads of 64, unless given", None)
    mlp: Count | None = key("width of its MLP", None)
    heads: Count | None = key("number of its heads", None)
    patch_size: Count | None = key("side of its patches in pixels, if not as named", None)
    init: Literal["paper", "timm"] = key("initialisation of a fresh network of the paper", "paper")
    posemb_resample: Literal["auto", "paper", "timm"] = key(
        "resampling: paper (3.2: bilinear, aligned corners), timm (as timm resamples the family), or auto: "
        "paper for the paper's networks, timm for timm's others",
        "auto",
    )


class Data(WithAddress):
    """The images and their preprocessing (paper, 4.1)."""

    dataset: str | None = key("demo, an alias, a Hub id or a local path (vit datasets)", None)
    train_split: str = key("training split, sliced as in Hugging Face datasets; auto finds it", "auto")
    eval_split: str = key("split to score on; auto finds it; dev_fraction: the part cut from train", "auto")
    dev_fraction: Fraction = key("fraction of train held out for choices, or as eval split (B.1.1)", 0.0)
    hold_out_dev: bool = key(
        "train without the dev part also where another split is reported; average_runs sets it", False
    )
    dev_stratified: bool = key("hold out that fraction of each class, one image at least; no: of all", False)
    num_examples: Count | None = key("train on a random subset of this many images (paper, 4.3)", None)
    image_column: str | None = key("column of the images, if ambiguous", None)
    label_column: str | None = key("column of the labels, if ambiguous", None)
    num_classes: Count | None = key("number of classes, for shards that do not store it", None)
    group_column: str | None = key(
        "what no cut separates: a column, folder:N (the N-th above the image), name:REGEX (a group of the "
        "file name), or near_duplicates (docs/finetune.md)",
        None,
    )
    one_class: bool = key("take a folder that holds one folder of folders as a data set of one class", False)
    image_size: Annotated[ImageSize | Literal["weights"], OR_WEIGHTS] = key(
        "pixels of the model's input: a side, [height, width] (paper, B.1), or weights: their own"
    )
    train_crop: Literal["inception", "random", "none"] = key(
        "inception: random area and aspect; random: image_size out of resize x resize; none: whole image"
    )
    crop_area: FractionRange | None = key("inception crop: [least, largest] fraction of the area", None)
    crop_aspect: PositiveRange | None = key("inception crop: [least, largest] width / height", None)
    resize: Count | None = key("random crop: side in pixels of the square that is cropped", None)
    flip: bool = key("flip training images horizontally with probability 0.5")
    randaugment: RandAugment | None = key("[layers, magnitude] (arXiv 1909.13719), after crop, flip", None)
    trivialaugment: bool = key(
        "one operation of random strength (arXiv 2103.10158), after crop, flip; instead of randaugment", False
    )
    random_erasing: UnitInterval = key(
        "probability of painting over a rectangle of 2 to 33 % of the area (arXiv 1708.04896), last", 0.0
    )
    eval_resize: Literal["square", "short_side", "none", "weights"] = key(
        "whole image to a square, or short side to floor(image_size / eval_crop_fraction); then crop; "
        "weights: as they state"
    )
    eval_crop_fraction: Annotated[CropFraction | Literal["weights"], OR_WEIGHTS] | None = key(
        "fraction of the side that the centre crop keeps; needed for short_side, allowed for square; "
        "weights: as they state",
        None,
    )
    interpolation: Literal["bilinear", "bicubic", "weights"] = key(
        "interpolation of every resize; weights: as they state"
    )
    antialias: bool = key("low-pass filter when an image gets smaller; the authors' code has none")
    mean: PerChannelOrWeights = key(
        "per channel, subtracted from pixels in [0, 1]; 0.5 for [-1, 1] (paper's code); weights: theirs"
    )
    std: PerChannelOrWeights = key("per channel, divides after the mean; weights: theirs")
    sampling: Literal["uniform", "sqrt", "balanced"] = key(
        "how often images are drawn; sqrt: a class by the root of its size; balanced: all classes the same",
        "uniform",
    )
    streaming: bool = key("read shards in place, shuffled within windows, instead of as tables", False)
    shuffle_window: Count = key("streaming: number of rows shuffled together", 8192)
    decode: Literal["exact", "fast"] = key(
        "fast: shrink JPEGs twice as large as needed while decoding, to other pixels (docs/data.md)",
        "exact",
    )
    cache: Literal["auto", "ram", "disk", "off"] = key(
        "decoded images: kept in memory or in the user's cache folder; auto: where it pays (docs/data.md)",
        "auto",
    )
    on_bad_image: Literal["error", "skip"] = key("unreadable images: stop, or skip and count", "error")

    @model_validator(mode="before")
    @classmethod
    def _one_spelling_of_a_square(cls, values: Any) -> Any:
        match values:
            case {"image_size": [height, width]} if height == width:
                return {**values, "image_size": height}
        return values

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        size = self.image_size
        assert size != WEIGHTS, "replaced by numbers before a run starts"
        return (size, size) if isinstance(size, int) else size


class Objective(Section):
    """The loss and its targets (paper, B.1)."""

    loss: Literal["softmax", "sigmoid", "masked_patch", "regression"] = key(
        "cross-entropy; sigmoid, summed over the classes, for several labels per image; regression: squared "
        "error of a number; or masked patch prediction (paper, 4.6)"
    )
    patch_target: Literal["mean_color", "downsized", "pixels"] | None = key(
        "masked_patch: 512 mean colours; those of the patch at 4x4; all pixels (paper, B.1.2)", None
    )
    corrupted: UnitIntervalOpen0 | None = key("masked_patch: fraction of patches (paper, B.1.2: 0.5)", None)
    masked: UnitInterval | None = key("fraction of these replaced by [mask] (paper: 0.8)", None)
    replaced: UnitInterval | None = key("fraction of these replaced by another patch (paper: 0.1)", None)
    mixup: PositiveOrZero = key("mix each image with another by a draw of Beta(mixup, mixup); 0: off", 0.0)
    cutmix: PositiveOrZero = key(
        "paste a box of another image, of an area drawn from Beta(cutmix, cutmix) (arXiv 1905.04899); "
        "with mixup, half of the batches each; 0: off",
        0.0,
    )
    label_smoothing: Fraction = key("fraction of the target spread over all classes (paper, 4.3)", 0.0)
    class_weights: Literal["none", "sqrt", "balanced"] = key(
        "softmax: weight of an image in a class of n, of mean 1; sqrt: n^-1/2; balanced: 1 / n", "none"
    )
    head_bias: float = key("initial bias of the head; -10 in the authors' pre-training", 0.0)


class Optimizer(Section):
    """The update of the weights (paper, 4.1, tables 3 and 4)."""

    name: Literal["sgd", "adam"] = key("adam decouples its weight decay (paper, 4.1)")
    lr: Positive = key("base learning rate; a list: chosen on the dev split (paper, tables 3, 4)")
    unfamiliar_lr: Positive | None = key(
        "of head = refit, instead of lr where frozen features know less than 60 % of left-out images",
        None,
    )
    momentum: Fraction | None = key("sgd only, no Nesterov; 0.9 unless given (paper, Table 4)", None)
    betas: Betas | None = key("adam only; [0.9, 0.999] unless given (paper, 4.1)", None)
    eps: Positive | None = key("adam only, added to the root of the second moment; 1e-8 unless given", None)
    weight_decay: PositiveOrZero = key("per step, weights shrink by lr * weight_decay (paper, Table 3)")
    decay_on: Literal["matrices", "all"] = key("matrices: only kernels of dense and convolution layers")
    layer_decay: UnitIntervalOpen0 = key(
        "factor of the learning rate for each layer below the head (arXiv 2106.08254); 1: one rate for all",
        1.0,
    )
    clip: PositiveOrZero = key("largest global norm of the gradient; 0: off (paper, tables 3, 4: 1)", 0.0)
    average: Fraction = key("Polyak averaging factor per step; 0: off (paper, 4.1: 0.9999)", 0.0)


class Schedule(Section):
    """Duration, and the learning rate over time (paper, tables 3 and 4)."""

    steps: Count | None = key("duration in optimizer steps; this or epochs", None)
    epochs: Positive | None = key("duration in passes over the training split; this or steps", None)
    warmup: StepsOrPercent = key('linear increase from 0, in steps or as a percentage of the run: "10%"')
    decay: Literal["cosine", "linear", "constant"] = key("from the end of the warm-up to the end of the run")
    end_lr: PositiveOrZero = key("learning rate at the end of the run; ignored by a constant one")
    image_sizes: Annotated[tuple[Count, ...], NON_EMPTY] | None = key(
        "sides of square training images over equal parts of the run, rising to data.image_size", None
    )
    max_minutes: MaxMinutes | None = key(
        "end after this time: fewer steps are planned once the first ones are measured (docs/finetune.md)",
        None,
    )


class Train(Section):
    """The training loop."""

    batch_size: Count = key("images per optimizer step, over all processes (paper, tables 3 and 4)")
    seed: NonNegativeInt = key("random seed of data order, augmentation, dropout and fresh weights")
    runs: Count = key("repetitions with seed, seed + 1, ...; gives mean and std (paper, Table 2: 3)")
    folds: NonNegativeInt = key(
        "K-fold cross-validation: this many folds, each scored by a run on the others, then train on "
        "all; 0: off",
        0,
    )
    log_every: Count = key("steps between lines of metrics.jsonl")
    save_every: NonNegativeInt = key("steps between checkpoints; 0: only when interrupted and at the end")
    save_minutes: Positive | None = key("minutes between checkpoints, besides save_every", None)
    stall_minutes: StallMinutes = key(
        "end a run of several processes after waiting so long for one", STALL_MINUTES
    )
    patience: NonNegativeInt = key(
        "end after this many evaluations (eval.every) without improvement on a part cut from train, with the "
        "best weights; 0: off",
        0,
    )
    keep_checkpoints: Count = key("number of newest checkpoints that stay on disk")
    milestone_every: NonNegativeInt = key("keep the checkpoints of every multiple of this; 0: none", 0)
    average_runs: Literal["none", "uniform", "greedy", "auto"] = key(
        "of several runs deliver the average, if it is not worse on the dev split: mean, greedy soup (arXiv "
        "2203.05482), or the better of the two; none: the first run",
        "none",
    )


class Distill(Section):
    """A teacher, whose predictions for each training view are learned (arXiv 1503.02531, 2106.05237)."""

    teacher: Ckpts | None = key(
        "checkpoints, or .onnx files; of several the mean of the probabilities (docs/distill.md)", None
    )
    images: Ckpts | None = key("files, folders or globs of images without labels to train on, too", None)
    weight: UnitInterval = key("weight of the distillation loss; the loss of the labels has the rest", 0.5)
    temperature: Positive = key("divides the logits of both", 1.0)
    compare: bool = key(
        "also train a baseline without teacher; the better on the dev split is delivered", True
    )

    @field_validator("teacher")
    @classmethod
    def _keep_credentials_apart(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return names and tuple(map(without_credentials, names))


class Eval(WithAddress):
    """Evaluation, and few-shot probes during training (paper, figures 4 and 5)."""

    probe: str | None = key("data set of a closed-form few-shot probe during training (paper, 4.1)", None)
    probe_every: NonNegativeInt = key("steps between probes, and one at the end; 0: only at the end", 0)
    probe_shots: Count = key("images per class of the probe (paper, figure 4: 5)", 5)
    every: NonNegativeInt = key("steps between evaluations during training; 0: only at the end", 0)
    batch_size: Count = key("images per forward pass of one process; no result depends on it")
    layer: Literal["pre_logits", "token", "gap"] = key(
        "features: input of the last layer; class token or mean of the patches after the last norm",
        "pre_logits",
    )


class Fewshot(Section):
    """Few-shot classification on frozen features (paper, 4.1; big_vision, configs/common_fewshot.py)."""

    shots: Counts = key("images per class; smaller support sets are parts of larger ones")
    seeds: Count = key("number of support sets, drawn with numpy seeds 0, 1, ...; gives mean and std")
    classifier: Literal["least-squares", "knn", "logistic", "ncm"] = key(
        "closed form (paper, 4.1), nearest neighbours, logistic regression, nearest class mean"
    )
    l2: NumberOrSweep = key('regularisation of least squares; "sweep": chosen on held-out support images')
    balance: Literal["none", "sqrt", "full"] = key(
        "least squares: weight of an image in a class of n; none: 1 (the authors); sqrt: n^-1/2; full: 1 / n",
        "none",
    )
    forecast: bool = key("also fit a learning curve, and predict the accuracy with more images", False)


class Inspect(Section):
    """Figures of a network's inside (paper, 4.5, D.7 and D.8)."""

    num_images: Count = key("images whose attention distance is averaged (paper, figure 11: 128)")
    num_shown: Count = key("images of these whose attention and features are shown (paper, figure 6: 3)")
    seed: NonNegativeInt = key("random seed of the choice of images from a data set")
    components: Count = key("principal components of the filters (paper, figure 7: 28)")
    residual: bool = key(
        "roll-out: average with the skip connection (arXiv 2005.00928); off: D.8 to the letter"
    )
    full_at: UnitIntervalOpen0 = key(
        "roll-out as shown: fraction of patches not at full brightness; 1: all but one"
    )
    renormalise: bool = key("attention distance: renormalise without the class token (D.7 does not say)")


class Precision(Section):
    """Number formats."""

    compute: Compute = key("of the forward pass; auto: bf16 where the device supports it", "auto")
    evaluation: Literal["fp32", "bf16", "fp16"] = key(
        "of the evaluations and probes of a run; `vit evaluate` and the others take --precision", "fp32"
    )


class Recipe(Section):
    """A recipe of `vit`. Evaluation does without the sections objective, optimizer, schedule and train.

    Only `vit fewshot` needs the section fewshot, only `vit inspect` the section inspect, and only a run with
    a teacher the section distill.
    """

    model: Model = Model()
    data: Data
    objective: Objective | None = None
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    train: Train | None = None
    distill: Distill | None = None
    eval: Eval
    fewshot: Fewshot | None = None
    inspect: Inspect | None = None
    precision: Precision = Precision()
    _choices: dict[str, tuple[Any, ...]] = {}
    _name: str = ""
    _notes: tuple[str, ...] = ()
    _by_size: dict[str, "Recipe"] = {}
    _given: dict[str, Any] = {}

    @property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """Values to choose from on the dev split, by dotted key; the section itself holds the first."""
        return self._choices

    @property
    def teachers(self) -> tuple[str, ...]:
        """The checkpoints and .onnx files that a student learns from."""
        return (self.distill and self.distill.teacher) or ()

    @property
    def name(self) -> str:
        """The name or path that it was loaded by; "" for a recipe that was made otherwise."""
        return self._name

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on how the recipe came about that a user should see."""
        return self._notes

    @property
    def by_size(self) -> dict[str, "Recipe"]:
        """Recipes of which the size of the data chooses one, see `recipe.auto`; else empty."""
        return self._by_size

    @property
    def given(self) -> dict[str, Any]:
        """Values that options set, by dotted key; kept of recipes of inference and of `auto` alone."""
        return self._given

    @property
    def asked(self) -> dict[str, Any]:
        """`given` without the batch size, on which no result of inference depends."""
        return {key: value for key, value in self._given.items() if key != "eval.batch_size"}

    def with_sizes(self, by_size: dict[str, "Recipe"]) -> "Recipe":
        """Return a copy with recipes of which the size of the data chooses one."""
        changed = self.model_copy()
        changed._by_size = by_size
        return changed

    def with_name(self, name: str) -> "Recipe":
        """Return a copy with the name that it was loaded by."""
        changed = self.model_copy()
        changed._name = name
        return changed

    def with_given(self, given: dict[str, Any]) -> "Recipe":
        """Return a copy with the values that options set."""
        changed = self.model_copy()
        changed._given = given
        return changed

    def with_notes(self, *notes: str) -> "Recipe":
        """Return a copy with further notes, whichever size of the data chooses."""
        changed = self.model_copy()
        changed._notes = (*self._notes, *notes)
        changed._by_size = {size: recipe.with_notes(*notes) for size, recipe in self._by_size.items()}
        return changed

    def with_choices(self, choices: dict[str, tuple[Any, ...]]) -> "Recipe":
        """Return a copy with these and no other values to choose from."""
        changed = self.model_copy()
        changed._choices = choices
        return changed


def table_in(annotation: Any) -> type[BaseModel] | None:
    """Return the schema of the table that a field holds, optional or inside a list or a dictionary."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(table_in, get_args(annotation))), None)


SECTIONS = {name: kind for name, field in Recipe.model_fields.items() if (kind := table_in(field.annotation))}
TRAINING_SECTIONS = ("objective", "optimizer", "schedule", "train")
OPTIONAL_SECTIONS = (*TRAINING_SECTIONS, "distill", "fewshot", "inspect")
KEYS = {
    f"{name}.{field}": info for name, kind in SECTIONS.items() for field, info in kind.model_fields.items()
}


def dotted(table: Any) -> Any:
    """Return {"optimizer": {"lr": 1}} as {"optimizer.lr": 1}; anything but a table unchanged."""
    if not isinstance(table, dict):
        return table
    tables = {name: keys if isinstance(keys, dict) else {"": keys} for name, keys in table.items()}
    return {
        f"{name}.{key}".rstrip("."): value for name, keys in tables.items() for key, value in keys.items()
    }


# Settings of a recipe inside another file, by dotted key.
RecipeKey = Annotated[str, GetPydanticSchema(lambda *_: core_schema.literal_schema([*KEYS]))]
RecipeKeys = Annotated[dict[RecipeKey, Any], BeforeValidator(dotted)]


def accepts_none(key: str) -> bool:
    """Return whether the word none unsets the key."""
    return key in KEYS and type(None) in get_args(KEYS[key].annotation)


@cache
def takes_list(key: str) -> bool:
    """Return whether one value of the key may be a list, such as [height, width]; else a list is a sweep."""
    section, _, name = key.partition(".")
    return _is_array(SECTIONS[section].model_json_schema()["properties"][name])


def _is_array(schema: dict[str, Any]) -> bool:
    branches = (*schema.get("anyOf", ()), *schema.get("oneOf", ()))
    return schema.get("type") == "array" or any(map(_is_array, branches))


def is_text(key: str) -> bool:
    """Return whether the key takes any text, so that 2012 or true on the command line stay text."""
    return KEYS[key].annotation in (str, str | None)
