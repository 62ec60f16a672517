"""The schema of a recipe: every section, key, type and default; closed, strict and immutable.

Studies, the rows of the paper's tables and class maps build their own schemas from the types defined here.
"""

from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    StringConstraints,
    Tag,
    TypeAdapter,
    model_validator,
)

ONE, OTHER = "<one>", "<other>"  # the branches of `either`; they appear in pydantic's paths, in no file


def either(one: Any, other: Any, *, other_if: type | tuple[type, ...]) -> Any:
    """Return the type `one | other`, where the class of a value decides between them.

    Unlike a plain union it reports a mistake once, not once for each branch.
    """
    branch = Discriminator(lambda value: OTHER if isinstance(value, other_if) else ONE)
    return Annotated[Annotated[one, Tag(ONE)] | Annotated[other, Tag(OTHER)], branch]


def list_of(kind: Any) -> Any:
    """Return the type of a list with one item at least, kept as a tuple."""
    return Annotated[tuple[kind, ...], Field(strict=False, min_length=1)]  # not strict: TOML has lists only


def one_or_several(kind: Any, *, one_if: type | tuple[type, ...]) -> Any:
    """Return the type of a list that may be written as its only item."""
    return Annotated[list_of(kind), BeforeValidator(lambda v: [v] if isinstance(v, one_if) else v)]


Count = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
PositiveOrZero = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
UnitInterval = Annotated[float, Field(ge=0, le=1)]
UnitIntervalOpen0 = Annotated[float, Field(gt=0, le=1)]
PercentText = Annotated[str, StringConstraints(pattern=r"^(100|\d{1,2}(\.\d+)?)%$")]
PerChannel = Annotated[tuple[float, float, float], Field(strict=False)]
ImageSize = either(Count, Annotated[tuple[Count, Count], Field(strict=False)], other_if=(list, tuple))
StepsOrPercent = either(NonNegativeInt, PercentText, other_if=str)
Counts = one_or_several(Count, one_if=int)
NumberOrSweep = either(Positive, Literal["sweep"], other_if=str)


def key(description: str, default: Any = ...) -> Any:
    """Declare a key with the meaning that `vit recipes schema` shows; required without a default."""
    return Field(default, description=description)


class Section(BaseModel):
    """A table of a TOML file: unknown keys are refused, no value is coerced, nothing can be reassigned."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Model(Section):
    """The network; with a checkpoint, what its own metadata leaves open."""

    name: str | None = key("the paper's name (ViT-B/16; paper, Table 1) or any timm model name", None)
    ckpt: str | None = key(
        "weights to start from: run folder, file, timm/<name>.<tag>, hf-hub:<id>, demo", None
    )
    dropout: Fraction = key(
        "probability, after the position embedding and every dense layer (paper, B.1)", 0.0
    )
    drop_path: Fraction = key(
        "probability that the last block is skipped, rising linearly from 0 (AugReg)", 0.0
    )
    grad_checkpointing: bool = key(
        "compute activations again in the backward pass: less memory, more time", False
    )
    pre_logits: bool = key("tanh layer before the pre-training head (paper, 3.1 and D.3)", False)
    gelu: Literal["auto", "tanh", "erf"] = key(
        "form of GELU; auto is the one the weights were made with, tanh for fresh ones; timm's is erf", "auto"
    )
    classifier: Literal["token", "gap"] = key(
        "seen by the head of a fresh network: the class token or the mean of the tokens (paper, D.3)", "token"
    )
    posemb: Literal["none", "1d", "2d", "relative", "sincos2d"] = key(
        "position embedding of a fresh network (paper, Table 8; sincos2d: arXiv 2205.01580)", "1d"
    )
    posemb_at: Literal["stem", "every_layer", "every_layer_shared"] = key(
        "where a fresh network adds it (paper, Table 8)", "stem"
    )
    layers: Count | None = key(
        "of a fresh transformer, where not as its name says (paper, Table 1 and Figure 8)", None
    )
    hidden: Count | None = key(
        "width D of a fresh transformer; then its MLP is 4 times as wide and its heads have 64 each", None
    )
    mlp: Count | None = key("width of its MLP, where not so", None)
    heads: Count | None = key("number of its heads, where not so", None)
    patch_size: Count | None = key("pixels a side of its patches, where not as its name says", None)
    init: Literal["paper", "timm"] = key("initialisation of a fresh network of the paper", "paper")
    posemb_resample: Literal["paper", "timm"] = key(
        "to another grid: bilinear with aligned corners (paper, 3.2), or timm's antialiased bicubic", "paper"
    )


class Data(Section):
    """Which images, and what happens to their pixels (paper, 4.1)."""

    dataset: str | None = key("demo, an alias, a Hub id or a local path (vit datasets)", None)
    train_split: str = key("split to train on, slices as Hugging Face writes them; auto finds it", "auto")
    eval_split: str = key(
        "split to score on; auto finds it, dev_fraction is the part that is cut from train", "auto"
    )
    dev_fraction: Fraction = key(
        "share of train to choose by (paper, B.1.1), and to score on where there is no other split", 0.0
    )
    num_examples: Count | None = key("train on a random subset of this many images (paper, 4.3)", None)
    image_column: str | None = key("column of the images, where several could be", None)
    label_column: str | None = key("column of the classes, where several could be", None)
    num_classes: Count | None = key("how many classes there are, for shards that do not tell", None)
    image_size: ImageSize = key("pixels of the model's input: a side, or [height, width] (paper, B.1)")
    train_crop: Literal["inception", "random", "none"] = key(
        "inception: random area and shape; random: image_size out of resize squared; none: the whole"
    )
    crop_area: Annotated[tuple[UnitIntervalOpen0, UnitIntervalOpen0], Field(strict=False)] | None = key(
        "inception crop: [least, largest] share of the image's area", None
    )
    crop_aspect: Annotated[tuple[Positive, Positive], Field(strict=False)] | None = key(
        "inception crop: [least, largest] width / height", None
    )
    resize: Count | None = key("random crop: side in pixels of the square it is cut from", None)
    flip: bool = key("mirror every other training image, drawn at random")
    randaugment: Annotated[tuple[Count, Positive], Field(strict=False)] | None = key(
        "[layers, magnitude] of RandAugment (arXiv 1909.13719), after crop and flip", None
    )
    eval_resize: Literal["square", "short_side", "none"] = key(
        "square: the whole, short_side: in its shape, to floor(image_size / eval_crop_fraction), then crop"
    )
    eval_crop_fraction: UnitIntervalOpen0 | None = key(
        "share of the side that the centre crop keeps; for short_side, and for square if not all", None
    )
    interpolation: Literal["bilinear", "bicubic"] = key("of every resize")
    antialias: bool = key("low-pass filter when an image gets smaller; the authors' code has none")
    mean: PerChannel = key("per channel, subtracted from pixels in [0, 1]; 0.5 for [-1, 1] (paper's code)")
    std: PerChannel = key("per channel, divides after the mean")
    streaming: bool = key(
        "read shards where they lie, shuffled within windows, instead of opening tables", False
    )
    shuffle_window: Count = key("streaming: rows that are shuffled among each other", 8192)
    on_bad_image: Literal["error", "skip"] = key(
        "an image that cannot be read stops the run or is counted", "error"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_spelling_of_a_square(cls, values: Any) -> Any:
        size = values.get("image_size") if isinstance(values, dict) else None
        square = isinstance(size, list | tuple) and len(size) == 2 and size[0] == size[1]
        return {**values, "image_size": size[0]} if square else values

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width in pixels."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else size


class Objective(Section):
    """What is minimised (paper, B.1)."""

    loss: Literal["softmax", "sigmoid", "masked_patch"] = key(
        "cross-entropy, sigmoid's summed over the classes; or what corrupted patches were (paper, 4.6)"
    )
    patch_target: Literal["mean_color", "downsized", "pixels"] | None = key(
        "masked_patch: 512 mean colours; those of the patch at 4x4; all pixels (paper, B.1.2)", None
    )
    corrupted: UnitIntervalOpen0 | None = key("masked_patch: share of the patches (paper, B.1.2: 0.5)", None)
    masked: UnitInterval | None = key("masked_patch: of these, share that becomes [mask] (paper: 0.8)", None)
    replaced: UnitInterval | None = key(
        "masked_patch: of these, share that becomes another (paper: 0.1)", None
    )
    mixup: PositiveOrZero = key(
        "each picture mixed with its neighbour by a share of Beta(mixup, mixup), drawn once a part; 0: off",
        0.0,
    )
    label_smoothing: Fraction = key("share of the target spread over all classes (paper, 4.3)", 0.0)
    head_bias: float = key("bias of the fresh head; the authors' pre-training takes -10", 0.0)


class Optimizer(Section):
    """How it is minimised (paper, 4.1, tables 3 and 4)."""

    name: Literal["sgd", "adam"] = key("adam decouples its weight decay (paper, 4.1)")
    lr: Positive = key("base learning rate; a list: chosen on the dev split (paper, tables 3, 4)")
    momentum: Fraction | None = key("sgd only, no Nesterov (paper, Table 4: 0.9)", None)
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] | None = key(
        "adam only (paper, 4.1: [0.9, 0.999])", None
    )
    eps: Positive | None = key("adam only, added to the root of the second moment", None)
    weight_decay: PositiveOrZero = key("per step, weights shrink by lr * weight_decay (paper, Table 3)")
    decay_on: Literal["matrices", "all"] = key("matrices: only kernels of dense and convolution layers")
    clip: PositiveOrZero = key("largest global norm of the gradient; 0: off (paper, tables 3, 4: 1)", 0.0)
    average: Fraction = key("Polyak averaging factor per step; 0: off (paper, 4.1: 0.9999)", 0.0)


class Schedule(Section):
    """How long, and the learning rate on the way (paper, tables 3 and 4)."""

    steps: Count | None = key("duration in optimizer steps; this or epochs", None)
    epochs: Positive | None = key("duration in passes over the training split; this or steps", None)
    warmup: StepsOrPercent = key('linear rise from 0, in steps or as a share of the run: "10%"')
    decay: Literal["cosine", "linear", "constant"] = key("from the end of the warm-up to the end of the run")
    end_lr: PositiveOrZero = key("learning rate at the end of the run; without meaning for a constant one")


class Train(Section):
    """The loop."""

    batch_size: Count = key("images per optimizer step, over all processes (paper, tables 3 and 4)")
    seed: NonNegativeInt = key("of the order, the augmentations, dropout and fresh weights")
    runs: Count = key("repetitions with seed, seed + 1, ...; gives mean and std (paper, Table 2: 3)")
    log_every: Count = key("steps between lines of metrics.jsonl")
    save_every: NonNegativeInt = key("steps between checkpoints; 0: only when stopped and at the end")
    save_minutes: Positive | None = key("minutes between checkpoints, besides save_every", None)
    keep_checkpoints: Count = key("how many of the newest checkpoints stay on disk")
    milestone_every: NonNegativeInt = key(
        "checkpoints of multiples of this many steps stay for ever; 0: none", 0
    )


class Eval(Section):
    """Scoring, and probing while training: few-shot accuracy against compute (paper, figures 4 and 5)."""

    probe: str | None = key("data set of a closed-form few-shot probe while training (paper, 4.1)", None)
    probe_every: NonNegativeInt = key("steps between probes; one more at the end; 0: at the end alone", 0)
    probe_shots: Count = key("images a class of the probe (paper, figure 4: 5)", 5)

    every: NonNegativeInt = key("steps between evaluations while training; 0: only at the end", 0)
    batch_size: Count = key("images per forward pass of one process; no result depends on it")
    layer: Literal["pre_logits", "token", "gap"] = key(
        "features: what the last layer is given; class token or mean of the patches, after the last norm",
        "pre_logits",
    )


class Fewshot(Section):
    """Few-shot classification on frozen features (paper, 4.1; big_vision, configs/common_fewshot.py)."""

    shots: Counts = key("images a class, drawn so that fewer are among more")
    seeds: Count = key("draws, by numpy's generators of seed 0, 1, ...; gives mean and std")
    classifier: Literal["least-squares", "knn", "logistic", "ncm"] = key(
        "of the features: in closed form (paper, 4.1), nearest neighbours, logistic regression, nearest mean"
    )
    l2: NumberOrSweep = key(
        'least-squares: strength of the regularisation, or "sweep": chosen by leaving drawn images out'
    )


class Inspect(Section):
    """Looking inside a network (paper, 4.5, D.7 and D.8)."""

    num_images: Count = key("pictures whose attention distance is averaged (paper, figure 11: 128)")
    num_shown: Count = key("of these, pictures whose attention and features are drawn (paper, figure 6: 3)")
    seed: NonNegativeInt = key("of the draw of the pictures from a data set")
    components: Count = key("principal components of the filters (paper, figure 7: 28)")
    residual: bool = key(
        "roll-out: a layer is half its skip connection (arXiv 2005.00928); off: the bare words of D.8"
    )
    full_at: UnitIntervalOpen0 = key(
        "roll-out as drawn: share of the patches that are not in full light; 1: all but the brightest"
    )
    renormalise: bool = key(
        "distance: attention sums to 1 again without the class token (paper, D.7 is silent)"
    )


class Precision(Section):
    """Number formats."""

    compute: Literal["auto", "fp32", "bf16", "fp16"] = key(
        "of the forward pass; auto suits the device", "auto"
    )


class Recipe(Section):
    """A recipe of `vit`. Evaluation does without the sections objective, optimizer, schedule and train.

    Only `vit fewshot` needs the section fewshot, only `vit inspect` the section inspect.
    """

    model: Model = Model()
    data: Data
    objective: Objective | None = None
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    train: Train | None = None
    eval: Eval
    fewshot: Fewshot | None = None
    inspect: Inspect | None = None
    precision: Precision = Precision()
    _choices: dict[str, tuple[Any, ...]] = PrivateAttr(default_factory=dict)

    @property
    def choices(self) -> dict[str, tuple[Any, ...]]:
        """Values to choose from on the dev split, by dotted key; the section itself holds the first."""
        return self._choices

    def with_choices(self, choices: dict[str, tuple[Any, ...]]) -> "Recipe":
        """Return a copy with these and no other values to choose from."""
        changed = self.model_copy()
        changed._choices = choices
        return changed


SECTIONS: dict[str, type[Section]] = {
    "model": Model,
    "data": Data,
    "objective": Objective,
    "optimizer": Optimizer,
    "schedule": Schedule,
    "train": Train,
    "eval": Eval,
    "fewshot": Fewshot,
    "inspect": Inspect,
    "precision": Precision,
}
TRAINING_SECTIONS = ("objective", "optimizer", "schedule", "train")
OPTIONAL_SECTIONS = (*TRAINING_SECTIONS, "fewshot", "inspect")
KEYS = {
    f"{name}.{field}": info for name, kind in SECTIONS.items() for field, info in kind.model_fields.items()
}


def _recipe_key(name: str) -> str:
    if name not in KEYS:
        raise ValueError
    return name


def dotted(table: Any) -> Any:
    """Return {"optimizer": {"lr": 1}} as {"optimizer.lr": 1}; anything but a table unchanged."""
    if not isinstance(table, dict):
        return table
    tables = {name: keys if isinstance(keys, dict) else {"": keys} for name, keys in table.items()}
    return {
        f"{name}.{key}".rstrip("."): value for name, keys in tables.items() for key, value in keys.items()
    }


# Settings of a recipe inside another file, by dotted key.
RecipeKeys = Annotated[dict[Annotated[str, AfterValidator(_recipe_key)], Any], BeforeValidator(dotted)]


def table_in(annotation: Any) -> type[BaseModel] | None:
    """Return the schema of the table that a field holds, optional or inside a list or a dictionary."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(table_in, get_args(annotation))), None)


def accepts_none(key: str) -> bool:
    """Return whether the word none unsets the key."""
    return key in KEYS and type(None) in get_args(KEYS[key].annotation)


@cache
def takes_list(key: str) -> bool:
    """Return whether one value of the key may be a list, such as [height, width]; else a list is a sweep."""
    schema = TypeAdapter(Annotated[KEYS[key].annotation, KEYS[key]]).json_schema()
    branches = (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ()))
    return any(branch.get("type") == "array" for branch in branches)


def is_text(key: str) -> bool:
    """Return whether the key takes any text, so that 2012 or true on the command line stay text."""
    return KEYS[key].annotation in (str, str | None)
