"""Teachers: networks whose probabilities for views of the training images a student learns.

A teacher sees what the student sees, at its own resolution and with its own statistics of pixels. Its network
is built when it is first asked: a run whose views are all stored needs its digest alone.

B batch, K classes.
"""

import json
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.data.loader import Batch
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation.inference import EvalSettings, check_finite, forward_batches, outputs_of
from vitcli.evaluation.setup import preprocessing_for
from vitcli.models import features
from vitcli.models.build import last_layers
from vitcli.output.atomic import digest_of_file
from vitcli.output.text import percent
from vitcli.recipe import load_for_inference
from vitcli.training.methods.outputs import MOST_ROWS, sample
from vitcli.training.methods.probe_head import ClosedFormHead, closed_form_head
from vitcli.training.objective import Mixing
from vitcli.weights.io import digest_of, read_description, read_weights
from vitcli.weights.load import keep_head, load
from vitcli.weights.onnx import OnnxNetwork

WHERE = "recipe key distill.teacher"
ONNX = ".onnx"
DERIVED = ("resize_to", "crop")  # of the rules that such a file states, see `Preprocessing.as_rules`


def image_size_of(name: str) -> tuple[int, int]:
    """Return height and width of the images of a teacher, without its tensors.

    Raises:
        VitError: it cannot be read, or is an ONNX file that would see a part of each view alone.
    """
    if name.endswith(ONNX):
        return OnnxTeacher(name).image_size
    return read_description(name, quiet=True).architecture.image_size


def open_teacher(name: str, split: Split, settings: EvalSettings) -> "Teacher":
    """Open a teacher with outputs for the classes of the training images.

    Raises:
        VitError: the network or file cannot be read, or a file predicts other classes.
    """
    return OnnxTeacher(name, split) if name.endswith(ONNX) else NetworkTeacher(name, split, settings)


class NetworkTeacher:
    """A checkpoint; a head for other classes gives place to the closed form on the training images.

    Args:
        settings: of its passes; its network is that of this process alone.

    Attributes:
        image_size: of its views, height and width in pixels.
        digest: changes with anything that its logits depend on, but views and training images.
        note: where its head comes from, once it has been asked.
    """

    note = ""

    def __init__(self, name: str, split: Split, settings: EvalSettings):
        self.name, self._split, self._settings = name, split, settings
        self._weights = read_weights(name, quiet=True)
        self._pixels, _ = preprocessing_for(self._weights, load_for_inference(None, (), {}))
        self.image_size = self._pixels.image_size
        facts = [self._weights.architecture.as_dict(), self._pixels.as_dict(), self._weights.class_names]
        self.digest = json.dumps([digest_of(self._weights.state), *facts])

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
        how = self._pixels, settings.device, settings.precision
        ((_, logits_BK),) = forward_batches(model, network, iter([batch]), *how)
        logits_BK = logits_BK[:count].float().cpu()
        check_finite(logits_BK, batch, so="nothing can be learned from them", precision=settings.precision)
        return logits_BK

    @cached_property
    def _network(self) -> nn.Module:
        weights, split, size = self._weights, self._split, self.image_size
        how = {"num_classes": split.num_classes, "data_name": split.name}
        model, _, _ = load(weights, image_size=size)
        try:
            self.note = keep_head(model, weights, split.class_names, **how)
        except WeightsError:
            model, _, _ = load(weights, image_size=size, num_classes=split.num_classes)
            head = self._closed_form(model.to(self._settings.device).eval())
            with torch.no_grad():
                for layer in last_layers(model):
                    layer.weight.copy_(head.weight_KD.reshape(layer.weight.shape))
                    layer.bias.copy_(head.bias_K)
            known = head.facts["left_out_top1"]
            right = "" if known is None else f", {percent(known)} of left-out images right"
            self.note = f"its head is the closed form on the training images{right}"
        return model.to(self._settings.device).eval()

    def _closed_form(self, model: nn.Module) -> ClosedFormHead:
        """Fit the closed form; every process by itself, since only some may miss views."""
        labelled_N = np.flatnonzero(self._split.read_labels() >= 0)
        part = sample(self._split.rows(labelled_N), MOST_ROWS)
        batches = self._settings.batches(part, self._pixels, all_rows=True)
        how = self._pixels, self._settings.device, self._settings.precision
        network = partial(features.outputs, model, layer="pre_logits", with_logits=False)
        rows = [
            (outputs_BD, batch.labels_B, batch.rows_B)
            for batch, outputs_BD in outputs_of(model, batches, *how, network=network)
        ]
        features_ND, labels_N, rows_N = map(torch.cat, zip(*rows, strict=True))
        groups_N = None if part.groups_N is None else part.groups_N[rows_N.numpy()]
        num_classes = self._split.num_classes
        return closed_form_head(
            features_ND, labels_N.numpy(), groups_N, num_classes=num_classes, loss="softmax"
        )


class OnnxTeacher:
    """An ONNX file of `vit export`, of any precision; attributes and `logits` as of `NetworkTeacher`.

    Args:
        split: whose classes its logits are for; None where only its size is asked.

    Raises:
        VitError: the file is missing.
        WeightsError: it does not say what it takes, crops what it is given, or is for other classes.
    """

    note = "an ONNX file"

    def __init__(self, name: str, split: Split | None = None):
        self.name, path = name, Path(name)
        if not path.is_file():
            raise VitError(f"there is no file {name}", where=WHERE, fix="correct the path")
        self._network, self.digest = OnnxNetwork(path), digest_of_file(path).hex()
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
        if split and names and split.class_names and set(names) != set(split.class_names):
            raise WeightsError(
                f"{name} is for other classes than {split.name} has",
                where=WHERE,
                fix="name a checkpoint: a closed form on the training images can be its head",
            )
        ordered = split.class_names if split and names and split.class_names else names
        self._order = torch.tensor([names.index(each) for each in ordered], dtype=torch.int64)

    def logits(self, images_BCHW: Tensor, mixing: Mixing | None) -> Tensor:
        if mixing:  # the file takes bytes
            images_BCHW = mixing.mix(images_BCHW.float()).round().to(torch.uint8)
        logits_BK = self._network(images_BCHW.permute(0, 2, 3, 1).contiguous())
        return logits_BK[:, self._order] if len(self._order) else logits_BK


Teacher = NetworkTeacher | OnnxTeacher
