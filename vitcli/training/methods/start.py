"""The weights at step 0 of a run whose head starts at its optimum: fitted once, kept in every checkpoint.

The backbone is that of the checkpoint that the run started from, which a resumed run reads again; the fitted
head is in the run's own checkpoints.

N rows, D features, K classes.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.data.loader import Batch
from vitcli.data.parts.cuts import random_subset
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed import fsdp
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation import inference
from vitcli.evaluation.inference import EvalSettings
from vitcli.features.feature_store import digest_of
from vitcli.models import features
from vitcli.models.build import last_layers
from vitcli.training.methods.probe_head import ClosedFormHead, closed_form_head

MOST_ROWS = 20_000  # images of the feature pass: a closed form on more of them is hardly better


@dataclass
class StartWeights:
    """The network before step 1.

    Attributes:
        tensors: its whole state dict, each placed as the network's own is; the head once it is fitted.
        head_names: of the tensors of the head, weights and biases in turn.
        digest: of the backbone, before anything was trained.
        facts: of the fitted head, see `ClosedFormHead`; empty before.
    """

    tensors: dict[str, Tensor]
    head_names: tuple[str, ...]
    digest: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def head(self) -> dict[str, Tensor]:
        """The tensors of the head, as checkpoints store them."""
        return {name: self.tensors[name] for name in self.head_names}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint's state.json stores."""
        return {"digest": self.digest, **self.facts}

    def restore(self, head: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Load the head of a checkpoint.

        Raises:
            WeightsError: the backbone is no longer the one that the run started from.
        """
        self.facts = {name: value for name, value in state.items() if name != "digest"}
        if state.get("digest") != self.digest:
            raise WeightsError(
                "the weights that this run started from have changed since",
                where="--ckpt (recipe key model.ckpt)",
                fix="restore that file, or start a new run in another folder",
            )
        self.tensors |= fsdp.all_sliced_like(head, self.head)

    def set_head(self, model: nn.Module, layer: ClosedFormHead) -> None:
        """Make the fitted layer the head of the network and of these weights."""
        values = (layer.weight_KD, layer.bias_K) * (len(self.head_names) // 2)
        shaped = {
            name: value.reshape(self.tensors[name].shape)
            for name, value in zip(self.head_names, values, strict=True)
        }
        self.tensors |= fsdp.all_sliced_like(shaped, self.head)
        self.facts = layer.facts
        model.load_state_dict(self.head, strict=False)


def start_weights(model: nn.Module) -> StartWeights:
    """Describe a network that is not sharded yet; `copy_of` follows once it is in its place.

    Raises:
        VitError: its logits are no linear function of its features.
    """
    names = head_names(model)
    backbone = {name: value for name, value in model.state_dict().items() if name not in names}
    return StartWeights({}, names, digest_of(backbone))


def head_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the tensors of the last layers, weight and bias of each.

    Raises:
        VitError: there is no such layer, or it has no bias.
    """
    names_of = {id(module): name for name, module in model.named_modules()}
    layers = last_layers(model)
    if not layers or any(layer.bias is None for layer in layers):
        raise VitError(
            "the head of this network is no layer of weights and a bias, so it cannot start as a closed form",
            where="recipe key model.head",
            fix="--set model.head=zero",
        )
    return tuple(f"{names_of[id(layer)]}.{kind}" for layer in layers for kind in ("weight", "bias"))


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    """Copy a state dict; whole tensors to main memory, slices stay in their place."""
    return {
        name: value.detach().clone() if fsdp.is_slice(value) else value.detach().to("cpu", copy=True)
        for name, value in model.state_dict().items()
    }


def fit_head(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    loss: str,
    balance: str,
) -> tuple[ClosedFormHead, list[str]]:
    """Fit a head on the training images as they are evaluated; also return this process's undecodable ones.

    At most MOST_ROWS images are used, a random sample that no seed changes. The first process solves, so
    that all have the same bits.
    """
    sample = random_subset(split, MOST_ROWS, seed=0) if len(split) > MOST_ROWS else split
    features_ND, labels_N, skipped = features_of(model, sample, preprocessing, settings)
    about = {"loss": loss, "balance": balance}
    layer = settings.runtime.on_main(
        lambda: closed_form_head(features_ND, labels_N, num_classes=split.num_classes, **about)
    )
    layer.facts["num_train_examples"] = len(split)
    return layer, skipped


def features_of(
    model: nn.Module, split: Split, preprocessing: Preprocessing, settings: EvalSettings
) -> tuple[Tensor, np.ndarray, list[str]]:
    """Return features (N, D) float32 and labels (N,) of the decodable rows, equal on all processes.

    Also the places of this process's undecodable images.
    """
    layer = last_layers(model)[0]
    width = layer.weight.shape[1]
    columns = {
        "features": torch.zeros(len(split), width),
        "labels": torch.zeros(len(split), dtype=torch.int64),
    }

    def columns_of(batch: Batch, features_BD: Tensor) -> dict[str, Tensor]:
        return {"features": features_BD, "labels": batch.labels_B}

    batches = inference.balanced_batches(model, split, preprocessing, settings)
    of_last_layer = {"layer": "pre_logits", "with_logits": False}
    network = fsdp.gathered_for(model, partial(features.outputs, model, **of_last_layer))
    outputs = inference.outputs_of(
        model, batches, preprocessing, settings.device, settings.precision, network=network
    )
    seen_N, skipped = inference.fill_by_row(columns, outputs, columns_of, split, settings)
    return columns["features"][seen_N], columns["labels"][seen_N].numpy(), skipped
