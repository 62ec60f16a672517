"""Teachers: networks whose probabilities for views of the training images a student learns.

A teacher sees what the student sees, at its own resolution and with its own statistics of pixels. Its network
is built for the first view that is not stored.

B batch, K classes.
"""

import json
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from vitcli.data.loader import Batch
from vitcli.data.split import Split
from vitcli.data.task import Task
from vitcli.data.transforms import Preprocessing
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation.inference import EvalSettings, forward_batches, outputs_of
from vitcli.evaluation.multilabel import task_of
from vitcli.evaluation.setup import preprocessing_for
from vitcli.models import features, flops
from vitcli.models.build import last_layers
from vitcli.output.atomic import digest_of_file
from vitcli.output.text import size_text
from vitcli.recipe import Recipe, load_for_inference
from vitcli.training.methods.outputs import MOST_ROWS, sample
from vitcli.training.methods.probe_head import ClosedFormHead, closed_form_head
from vitcli.training.objective import Mixing
from vitcli.weights import licences
from vitcli.weights.io import WeightsInfo, digest_of, read_description, read_weights
from vitcli.weights.load import check_same_classes, keep_head, load
from vitcli.weights.production.program import ProgramNetwork
from vitcli.weights.production.session import load_runtime

WHERE = "recipe key distill.teacher"
ONNX = ".onnx"
DERIVED = ("resize_to", "crop")  # of the rules that such a file states, see `Preprocessing.as_rules`


def check_teachers(recipe: Recipe, train: Split) -> None:
    """Refuse teachers without predictions for the classes, or that would see other views than the student.

    Raises:
        VitError: as described, or a teacher cannot be read.
    """
    assert recipe.distill, "it has a teacher"
    data = recipe.data
    of_pixels = {
        "data.train_crop": data.train_crop == "random",
        "data.randaugment": data.randaugment is not None,
        "data.trivialaugment": data.trivialaugment and recipe.schedule.image_sizes is not None,
        "data.random_erasing": data.random_erasing > 0,
    }
    keys = [key for key, is_used in of_pixels.items() if is_used]
    sides = {data.image_hw, *((side, side) for side in recipe.schedule.image_sizes or ())}
    for name in recipe.teachers:
        size = image_size_of(name, train)
        if keys and sides != {size}:
            raise VitError(
                f"{keys[0]} depends on the image size, which is {size_text(size)} px for the teacher and "
                f"{size_text(data.image_hw)} for the student",
                where=f"recipe keys {keys[0]}, distill.teacher = {name!r}",
                fix="--recipe modern/distill, whose views are the same at any size; or one size for both",
            )


def image_size_of(name: str, split: Split) -> tuple[int, int]:
    """Return height and width of the images of a teacher, without its tensors.

    Raises:
        VitError: it cannot be read, or is an ONNX file that does not fit these training images.
    """
    if name.endswith(ONNX):
        return OnnxTeacher(name, split).image_size
    return read_description(name, quiet=True).architecture.image_size


def bytes_of_teachers(recipe: Recipe) -> float:
    """Return the memory that the weights of all teachers take."""
    networks = [4 * flops.num_params(each.architecture) for each in _descriptions(recipe)]
    return sum(networks) + sum(Path(name).stat().st_size for name in recipe.teachers if name.endswith(ONNX))


def licence_of_student(own: str | None, recipe: Recipe) -> str | None:
    """Return the licence of its start, or that of a teacher which excludes commercial use."""
    licences_of = [own, *(each.metadata.get(licences.KEY) for each in _descriptions(recipe))]
    return next((each for each in licences_of if each and licences.is_non_commercial(each)), own)


def _descriptions(recipe: Recipe) -> list[WeightsInfo]:
    return [read_description(name, quiet=True) for name in recipe.teachers if not name.endswith(ONNX)]


def open_teacher(name: str, split: Split, settings: EvalSettings) -> "Teacher":
    """Open a teacher with outputs for the classes of the training images.

    Raises:
        VitError: the network or file cannot be read, or is a file that predicts something else.
    """
    return OnnxTeacher(name, split) if name.endswith(ONNX) else NetworkTeacher(name, split, settings)


class NetworkTeacher:
    """A checkpoint; a head for other classes is replaced by the closed form on the training images.

    Args:
        settings: of its passes; its network is that of this process alone.

    Attributes:
        image_size: of its views, height and width in pixels.
        digest: changes with anything that its logits depend on, but views and training images.
        notes: lines for the terminal on its head and its licence.
    """

    def __init__(self, name: str, split: Split, settings: EvalSettings):
        self.name, self._split, self._settings = name, split, settings
        self._weights = read_weights(name, quiet=True)
        self._pixels, _ = preprocessing_for(self._weights, load_for_inference(None, (), {}))
        self.image_size = self._pixels.image_size
        arch, names = self._weights.architecture, self._weights.class_names
        facts = [digest_of(self._weights.state), arch.as_dict(), self._pixels.as_dict(), names]
        self.digest = json.dumps([*facts, self._has_own_head])
        self.notes = licences.note_on(self._weights.licence, "the teacher's weights")
        if not self._has_own_head:
            instead = "a closed form on the training images is its head"
            self.notes.append(f"teacher {name} has no head for these classes: {instead}")

    @cached_property
    def _has_own_head(self) -> bool:
        """Whether it predicts one of the classes of the training images."""
        weights, split = self._weights, self._split
        if task_of(weights.metadata, weights.architecture.num_classes) != Task.ONE_CLASS:
            return False
        with suppress(WeightsError):
            check_same_classes(
                weights, split.class_names, num_classes=split.num_classes, data_name=split.name
            )
            return True
        return False

    def logits(self, images_BCHW: Tensor, mixing: Mixing | None) -> Tensor:
        """Return logits_BK, float32 on the CPU, of uint8 views, mixed if they are to be.

        Raises:
            WeightsError: they are not finite.
        """
        model, settings, count = self._network, self._settings, len(images_BCHW)

        def network(_: Tensor, pixels_BCHW: Tensor) -> Tensor:
            if mixing:  # not with the blank images that pad a batch
                mixed_BCHW = mixing.mix(pixels_BCHW[:count])
                pixels_BCHW = torch.cat([mixed_BCHW, pixels_BCHW[count:]])
            return features.logits(model, pixels_BCHW)

        batch = Batch(images_BCHW, torch.zeros(count), torch.zeros(count, dtype=torch.int64), ())
        passes = forward_batches(
            model, network, iter([batch]), self._pixels, settings.device, settings.precision
        )
        ((_, logits_BK),) = passes
        logits_BK = logits_BK[:count].float().cpu()
        if not logits_BK.isfinite().all():
            fix = "use other weights" if settings.precision == "fp32" else "--precision fp32"
            raise WeightsError(f"the outputs of teacher {self.name} are not finite", where=WHERE, fix=fix)
        return logits_BK

    @cached_property
    def _network(self) -> nn.Module:
        weights, split, size = self._weights, self._split, self.image_size
        model, _, _ = load(
            weights, image_size=size, num_classes=None if self._has_own_head else split.num_classes
        )
        if self._has_own_head:
            keep_head(model, weights, split.class_names, num_classes=split.num_classes, data_name=split.name)
        else:
            head = self._closed_form(model.to(self._settings.device).eval())
            with torch.no_grad():
                for layer in last_layers(model):
                    layer.weight.copy_(head.weight_KD.reshape(layer.weight.shape))
                    layer.bias.copy_(head.bias_K)
        return model.to(self._settings.device).eval()

    def _closed_form(self, model: nn.Module) -> ClosedFormHead:
        """Fit the closed form; every process by itself, since only some may miss views."""
        part, settings = sample(self._split, MOST_ROWS), self._settings
        outputs = outputs_of(
            model,
            settings.batches(part, self._pixels, all_rows=True),
            self._pixels,
            settings.device,
            settings.precision,
            network=partial(features.outputs, model, layer="pre_logits", with_logits=False),
        )
        rows = [(outputs_BD, batch.labels_B, batch.rows_B) for batch, outputs_BD in outputs]
        features_ND, labels_N, rows_N = map(torch.cat, zip(*rows, strict=True))
        groups_N = None if part.groups_N is None else part.groups_N[rows_N.numpy()]
        return closed_form_head(
            features_ND, labels_N.numpy(), groups_N, num_classes=self._split.num_classes, loss="softmax"
        )


class OnnxTeacher:
    """An ONNX file of `vit export`, of any precision; attributes and `logits` as of `NetworkTeacher`.

    Raises:
        VitError: the file is missing.
        WeightsError: it does not say what it takes, crops what it is given, or is not for these classes.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, name: str, split: Split):
        self.name, path = name, Path(name)
        if not path.is_file():
            raise VitError(f"there is no file {name}", where=WHERE, fix="correct the path")
        self._network = ProgramNetwork(path)
        self.digest = f"{digest_of_file(path).hex()}, onnxruntime {load_runtime('onnxruntime').__version__}"
        stored = self._network.opened.session.get_modelmeta().custom_metadata_map
        try:
            rules = json.loads(stored["preprocessing"])
            pixels = Preprocessing.from_dict({key: rules[key] for key in rules if key not in DERIVED})
            names = tuple(map(str, json.loads(stored.get("class_names", "[]"))))
        except (KeyError, ValueError, TypeError, WeightsError) as error:
            fix = "export it with vit export, or name the checkpoint that it is of"
            raise WeightsError(f"{name} does not say which pixels it takes", where=WHERE, fix=fix) from error
        self.image_size = pixels.image_size
        if self._network.takes_any_size and pixels.whole_size != pixels.image_size:
            raise WeightsError(
                f"{name} crops what it is given, and would see a part of each view alone",
                where=WHERE,
                fix="export it with --input pixels, or name the checkpoint that it is of",
            )
        num_outputs = self._network.opened.session.get_outputs()[0].shape[-1]
        is_of_classes = self._network.opened.answer_name == "probabilities" and "several_labels" not in stored
        if (
            not is_of_classes
            or num_outputs != split.num_classes
            or (names and set(names) != {*(split.class_names or names)})
        ):
            raise WeightsError(
                f"{name} does not predict the classes of {split.name}",
                where=WHERE,
                fix="name a checkpoint: a closed form on the training images can be its head",
            )
        ordered = (split.class_names or names) if names else ()
        self._order = torch.tensor([names.index(each) for each in ordered], dtype=torch.int64)

    def logits(self, images_BCHW: Tensor, mixing: Mixing | None) -> Tensor:
        if mixing:  # the file takes bytes
            images_BCHW = mixing.mix(images_BCHW.float()).round().to(torch.uint8)
        logits_BK = self._network(images_BCHW.permute(0, 2, 3, 1).contiguous())
        return logits_BK[:, self._order] if len(self._order) else logits_BK


Teacher = NetworkTeacher | OnnxTeacher
