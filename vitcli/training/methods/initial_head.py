"""The weights at step 0 of a run whose head starts at its optimum: fitted once, kept in every checkpoint.

The backbone is that of the checkpoint that the run started from, which a resumed run reads again; both
fitted heads are in its own checkpoints: the one to start with, which the dev split can judge, and
the one on these images too, which is delivered in its place.

N rows, D features, K classes.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.data.split import Split
from vitcli.distributed import fsdp
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation.metrics import Metrics, metrics_of_logits
from vitcli.features.label_errors import LEAST_KNOWN, by_left_out_scores
from vitcli.features.least_squares import has_others
from vitcli.models.build import last_layers
from vitcli.training.methods.outputs import Outputs
from vitcli.training.methods.probe_head import ClosedFormHead, closed_form_head
from vitcli.weights.io import digest_of

MOST_CLASSES = 2_000  # of which labels are compared: the work grows with their square
MOST_NAMED = 20  # labels to check, kept with the facts of the head
WHOLE = "whole."  # before the names of tensors of the head on all images


@dataclass
class InitialHead:
    """The network before step 1.

    Attributes:
        tensors: its whole state dict, each placed as the network's own is; the head once it is fitted.
        head_names: of the tensors of the head, weights and biases in turn.
        digest: of the backbone, before anything was trained.
        facts: of the fitted head, see `ClosedFormHead`; empty before.
        score: of the network that training starts with, on the dev split; None before.
        whole_head: the tensors of the head that is fitted on the dev split too; empty before.
    """

    tensors: dict[str, Tensor]
    head_names: tuple[str, ...]
    digest: str
    facts: dict[str, Any] = field(default_factory=dict)
    score: Metrics | None = None
    whole_head: dict[str, Tensor] = field(default_factory=dict)

    @property
    def head(self) -> dict[str, Tensor]:
        """The tensors of the head that training starts with."""
        return {name: self.tensors[name] for name in self.head_names}

    @property
    def stored(self) -> dict[str, Tensor]:
        """The tensors that checkpoints store: of both heads."""
        whole = self.whole_head or self.head
        return self.head | {WHOLE + name: tensor for name, tensor in whole.items()}

    @property
    def delivered(self) -> dict[str, Tensor]:
        """The whole state dict that is delivered for that of the start."""
        return self.tensors | self.whole_head

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint's state.json stores."""
        return {"digest": self.digest, "score": self.score and asdict(self.score), **self.facts}

    def restore(self, stored: dict[str, Tensor], state: Any) -> None:
        """Load the heads of a checkpoint.

        Raises:
            WeightsError: no run has written these facts, or the backbone is no longer the one that the run
                started from.
        """
        score = state.get("score") if isinstance(state, dict) else None
        is_whole = isinstance(score, dict) and isinstance(state.get("digest"), str) and len(state) > 2
        if not is_whole or score.keys() != Metrics.__dataclass_fields__.keys():
            raise WeightsError(
                "the checkpoint is not one of this run: the facts of its head are missing",
                where="state.json of the checkpoint, probe_head",
                fix="move it out of checkpoints/, or start again with --overwrite",
            )
        self.facts = {name: value for name, value in state.items() if name not in ("digest", "score")}
        self.score = Metrics(**score)
        if state.get("digest") != self.digest:
            raise WeightsError(
                "the weights that this run started from have changed since",
                where="--ckpt (recipe key model.ckpt)",
                fix="restore that file, or start a new run in another folder",
            )
        whole = {name: stored[WHOLE + name] for name in self.head_names}
        self.whole_head = fsdp.all_sliced_like(whole, self.head)
        self.tensors |= fsdp.all_sliced_like({name: stored[name] for name in self.head_names}, self.head)

    def set_heads(
        self, model: nn.Module, layer: ClosedFormHead, whole: ClosedFormHead, score: Metrics
    ) -> None:
        """Make a fitted layer the head of the network and of these weights, and keep that on all images."""
        self.score = score
        self.whole_head = placed_in_head(whole, self.head)
        self.tensors |= placed_in_head(layer, self.head)
        self.facts = layer.facts | {"num_delivered_examples": whole.facts["num_examples"]}
        model.load_state_dict(self.head, strict=False)


def placed_in_head(layer: ClosedFormHead, head: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a fitted layer in the shapes and slices of the tensors of a head, weight and bias in turn."""
    values = (layer.weight_KD, layer.bias_K) * (len(head) // 2)
    shaped = {name: value.reshape(head[name].shape) for name, value in zip(head, values, strict=True)}
    return fsdp.all_sliced_like(shaped, head)


def start_weights(model: nn.Module) -> InitialHead:
    """Describe a network that is not sharded yet; `copy_of` follows once it is in its place.

    Raises:
        VitError: its logits are not a linear function of its features.
    """
    names = head_names(model)
    backbone = {name: value for name, value in model.state_dict().items() if name not in names}
    return InitialHead({}, names, digest_of(backbone))


def head_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the tensors of the last layers, weight and bias of each.

    Raises:
        VitError: there is no such layer, or it has no bias.
    """
    names_of = {id(module): name for name, module in model.named_modules()}
    layers = last_layers(model)
    if not layers or any(layer.bias is None for layer in layers):
        raise VitError(
            "the head of this network is not a layer with a bias, so it cannot start as a closed form",
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


def fit_heads(
    train: Outputs, choice: Outputs, split: Split, *, loss: str, balance: str
) -> tuple[ClosedFormHead, ClosedFormHead, Metrics]:
    """Fit a head on rows of the training images, and one on those of the dev split too.

    Also return the metrics of the first on the dev split.
    """
    fitted = partial(closed_form_head, num_classes=split.num_classes, loss=loss, balance=balance)
    layer, whole = (
        fitted(torch.from_numpy(rows.features_ND), rows.labels_N, rows.groups_N)
        for rows in (train, train + choice)
    )
    layer.facts["num_train_examples"] = len(split)
    layer.facts["labels_to_check"] = labels_to_check(whole, train + choice, split)
    logits_MK = torch.from_numpy(choice.features_ND) @ layer.weight_KD.T + layer.bias_K
    score = metrics_of_logits(logits_MK, torch.from_numpy(choice.labels_N))
    return replace(layer, left_out=None), replace(whole, left_out=None), score  # the rest is not to be sent


def labels_to_check(head: ClosedFormHead, rows: Outputs, split: Split) -> dict[str, Any] | None:
    """Return the labels that the left-out scores of a fitted head contradict; None where it knows too little.

    That is where the head has no such scores, does not know the classes (`label_errors.LEAST_KNOWN`), or has
    more than MOST_CLASSES.
    """
    if head.left_out is None or not 1 < split.num_classes <= MOST_CLASSES:
        return None
    rows_N = np.flatnonzero(has_others(rows.labels_N, rows.groups_N))
    l2, top1 = head.facts["l2"], head.facts["left_out_top1"]
    logits_MK, labels_M = head.left_out
    found = by_left_out_scores(rows_N, logits_MK, labels_M, l2=l2, top1=top1)
    if found.top1 < LEAST_KNOWN:
        return None
    names = split.class_names or tuple(map(str, range(split.num_classes)))
    return {
        "num_checked": len(rows_N),
        "num_named": found.num_named,
        "first": [
            {
                "place": rows.place_of(int(found.rows_N[rank])),
                "label": names[rows.labels_N[found.rows_N[rank]]],
                "other": names[found.other_N[rank]],
                "other_probability": round(float(found.other_probability_N[rank]), 3),
            }
            for rank in range(min(found.num_named, MOST_NAMED))
        ],
    }
