"""A head that ends at its optimum: after the last step the closed form on the tuned features joins it.

Fine-tuning begins with a head of zeros, as in the paper (section 3.2): the backbone then gets gradients where
it has most to learn, which a head that explains the training images from the first step denies it. Gradient
descent on few images leaves that head far from the optimum on the features that it has made, though. Both are
linear functions of these features, so their sum is an ordinary layer:

    logits = (V + t W) x,        V the tuned head, W the closed form on all training images, t its temperature

No dev split is held out. Another pass, before training, fits the closed form on features that do not
know the labels; each image (or group) left out in turn, it says three things:

- labels that it contradicts;
- how far the backbone has to go: where it has less than FAMILIAR of the images right, training takes
  `optimizer.unfamiliar_lr`;
- with `model.head_layers`, whether a closed form on the last layers, see `models.layered_head`, is ahead by
  more than AHEAD. Then the delivered head reads these: V stands in the columns of the last class token, and W
  is the closed form on all columns.

N rows, D features, K classes.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed import launch
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation import inference
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.predictions import Predictions
from vitcli.models.layered_head import can_read_layers, columns_of_token, with_layered_head
from vitcli.output.text import probe_head_text
from vitcli.recipe import Recipe
from vitcli.recipe.schema import REFIT
from vitcli.training.checkpoint import Checkpoint
from vitcli.training.methods.imbalance import balance_of
from vitcli.training.methods.initial_head import head_names, labels_to_check, placed_in_head
from vitcli.training.methods.method import Keys, Method, Results
from vitcli.training.methods.outputs import Outputs, num_rows, of_rows, sample
from vitcli.training.methods.probe_head import ClosedFormHead, closed_form_head
from vitcli.training.splits import RunSplits
from vitcli.weights.locate import LAYERED

if TYPE_CHECKING:  # they import this module
    from vitcli.training.run import TrainingRun
    from vitcli.training.setup import TrainingJob

FAMILIAR = 0.6  # left-out accuracy of frozen features: below it the backbone has most to learn
MOST_SIDE = 5_000  # rows or columns of a closed form on several layers: time grows with the cube of the fewer
AHEAD = 0.1  # of left-out accuracy, by which several layers have to be better than one


class RefittedHead(Method):
    """The closed form on the tuned features, which joins the head after the last step."""

    feature_passes = 2
    before: dict[str, Any] | None = None  # facts of the closed form before step 1, {} if there is none

    @staticmethod
    def is_asked_for(command: str, recipe: Recipe, splits: RunSplits) -> bool:
        return recipe.model.head == REFIT

    def check(self, splits: RunSplits) -> None:
        train = splits.train
        if train.is_multilabel or train.has_numbers:
            raise VitError(
                "the closed form of a refitted head predicts one class, "
                f"and {train.name} does not have one per image",
                where="recipe key model.head",
                fix="--set model.head=zero",
            )

    def candidates(self) -> list[str]:
        choices, optimizer = [], self.recipe.optimizer
        if lr := optimizer.unfamiliar_lr:
            choices.append(
                f"rate {optimizer.lr:g}, or {lr:g} where frozen features know less than {FAMILIAR:.0%}"
            )
        if layers := self.recipe.model.head_layers:
            more = f"{100 * AHEAD:.0f} points more"
            choices.append(f"head on one layer, or on {layers} where these know {more}")
        return choices

    def num_scored(self, job: "TrainingJob") -> int:
        return num_rows(job.splits.train, job.plan)

    def state(self) -> Keys:
        return {} if self.before is None else {"frozen_head": self.before}

    def restore(self, saved: Checkpoint) -> None:
        self.before = restored(saved.state.get("frozen_head", {}))

    def before_steps(self, run: "TrainingRun") -> None:
        """Fit the closed form that says which labels it contradicts, and take the rate that it asks for."""
        if self.before is None:
            launch.enter("the feature pass before training")
            asked = self.recipe.model.head_layers
            head, _ = self._fit(run, head_layers=asked)
            self.before = head.facts if head else {}
            if head:
                run.job.progress.detail(probe_head_text(head.facts, head_layers=asked))
        lr = lr_of(self.recipe, self.before)
        if lr != self.recipe.optimizer.lr:
            run.job.progress.detail(f"learning rate {lr:g}: images that the frozen features do not know")
            run.job = run.job.with_lr(lr)

    def after_steps(self, run: "TrainingRun", diverged: str) -> Keys:
        """Let the closed form on the tuned features join the head; return both for the summary."""
        launch.enter("the feature pass of the refitted head")
        state = run.state
        if state.average:
            state.deliver(state.weights)
        if num_layers := layers_of(self.before):
            state.model = with_layered_head(state.model, num_layers)
            run.job = run.job.with_layered_head(num_layers)
        after, rows = self._fit(run, head_layers=None)
        if after:
            join(state.model, after)
        if num_layers:
            columns = columns_of_token(rows.features_ND.shape[1], num_layers)
            rows = replace(rows, features_ND=rows.features_ND[:, columns])
        run.evaluation.keep(run.job.splits.train, rows)
        return facts_of(self.before or None, after)

    def results(self, run: "TrainingRun", predictions: Predictions | None, summary: Keys) -> Results:
        return {}, {LAYERED: True} if (summary["refit"] or {}).get("head_layers") else {}

    def _fit(self, run: "TrainingRun", *, head_layers: int | None) -> tuple[ClosedFormHead | None, Outputs]:
        """Return the closed form on training images, see `fit`, and their features."""
        evaluation, train = run.evaluation, run.job.splits.train
        with evaluation.evaluated_model() as model:
            head, rows, skipped = fit(
                model,
                train,
                evaluation.preprocessing,
                evaluation.as_in_training,
                most_rows=num_rows(train, run.job.plan),
                loss=self.recipe.objective.loss,
                balance=balance_of(self.recipe),
                head_layers=head_layers,
            )
        run.state.skipped |= set(skipped)
        return head, rows


def fit(
    model: nn.Module,
    split: Split,
    preprocessing: Preprocessing,
    settings: EvalSettings,
    *,
    most_rows: int,
    loss: str,
    balance: str,
    head_layers: int | None,
) -> tuple[ClosedFormHead | None, Outputs, list[str]]:
    """Fit the closed form on training images as they are evaluated; None of features that are not finite.

    Also return their features, and the undecodable images of this process. The first one solves, so that all
    have the same bits.

    Args:
        most_rows: of more images a random sample is taken that no seed changes.
        head_layers: before training, the layers that a head may read: the closed form on these is returned if
            it is ahead, with both accuracies, and names the labels that its left-out scores contradict. None
            after training, of features that know the labels.
    """
    images = sample(split, most_rows)
    has_layers = head_layers is not None and can_read_layers(model, head_layers)
    has_layers = has_layers and min(len(images), 2 * head_layers * model.num_features) <= MOST_SIDE
    network = with_layered_head(model, head_layers) if has_layers else model
    passed = inference.features_and_logits(network, images, preprocessing, settings)
    rows = of_rows(passed, images)
    fitted = partial(closed_form_head, num_classes=split.num_classes, loss=loss, balance=balance)

    def solved() -> ClosedFormHead | None:
        if len(np.unique(rows.labels_N)) < 2:
            return None
        features_ND = torch.from_numpy(rows.features_ND)
        head = fitted(features_ND, rows.labels_N, rows.groups_N)
        facts = {"num_train_examples": len(split)}
        if has_layers:
            token_ND = features_ND[:, columns_of_token(features_ND.shape[1], head_layers)]
            ordinary = fitted(token_ND, rows.labels_N, rows.groups_N)
            head, compared = _better(head, ordinary, head_layers)
            facts |= compared
        facts |= {} if head_layers is None else {"labels_to_check": labels_to_check(head, rows, split)}
        return replace(head, facts=head.facts | facts, left_out=None)  # which need not be sent

    return settings.runtime.on_main(solved), rows, passed.skipped


def _better(
    layered: ClosedFormHead, ordinary: ClosedFormHead, num_layers: int
) -> tuple[ClosedFormHead, dict[str, Any]]:
    """Return the closed form on all columns, or that on the last class token unless the other is ahead."""
    top1, layered_top1 = (head.facts["left_out_top1"] for head in (ordinary, layered))
    is_ahead = top1 is not None and layered_top1 > top1 + AHEAD
    facts = {"head_layers": num_layers if is_ahead else 0}
    return layered if is_ahead else ordinary, facts | {"one_layer_top1": top1, "layered_top1": layered_top1}


def join(model: nn.Module, head: ClosedFormHead) -> None:
    """Add a closed form to the head of the network."""
    tensors = model.state_dict()
    tuned = {name: tensors[name] for name in head_names(model)}
    fitted = placed_in_head(head, tuned)
    model.load_state_dict(
        {name: tuned[name] + fitted[name].to(tuned[name].device) for name in tuned}, strict=False
    )


def lr_of(recipe: Recipe, before: dict[str, Any]) -> float:
    """Return the base learning rate of a run by the facts of the closed form before training."""
    top1 = before.get("one_layer_top1", before.get("left_out_top1"))
    if top1 is None or top1 >= FAMILIAR:
        return recipe.optimizer.lr
    return recipe.optimizer.unfamiliar_lr or recipe.optimizer.lr


def restored(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of the closed form before training as a checkpoint has them.

    Raises:
        WeightsError: they decide about the rate and the head of a run, and no run has written these.
    """
    top1s = [stored.get(key) for key in ("left_out_top1", "one_layer_top1", "layered_top1")]
    are_accuracies = all(top1 is None or (type(top1) in (int, float) and 0 <= top1 <= 1) for top1 in top1s)
    layers = stored.get("head_layers", 0)
    if are_accuracies and type(layers) is int and layers >= 0:
        return stored
    raise WeightsError(
        "the accuracies of the closed form before training are damaged",
        where="state.json of the checkpoint, frozen_head",
        fix="restore that file, or start a new run in another folder",
    )


def layers_of(before: dict[str, Any] | None) -> int:
    """Return how many layers the delivered head reads by the facts before training; 0 for an ordinary one."""
    return (before or {}).get("head_layers", 0)


def facts_of(before: dict[str, Any] | None, after: ClosedFormHead | None) -> dict[str, Any]:
    """Return the keys of summary.json: of the closed form before training, and of that in the head."""
    joined = None
    if after is not None:
        joined = {key: after.facts[key] for key in ("l2", "temperature", "num_examples")}
        joined["head_layers"] = layers_of(before)
    return {"probe_head": before, "refit": joined}
