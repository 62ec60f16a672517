"""Thresholds of several labels, chosen after training on images that no reported number is of."""

from typing import TYPE_CHECKING

from vitcli.evaluation import multilabel
from vitcli.evaluation.multilabel import Multilabel
from vitcli.evaluation.predictions import Predictions
from vitcli.recipe import Recipe
from vitcli.training.methods.method import Keys, Method, Results
from vitcli.training.objective import gives_several_labels
from vitcli.training.splits import RunSplits

if TYPE_CHECKING:  # they import this module
    from vitcli.training.run import TrainingRun
    from vitcli.training.setup import TrainingJob


class TunedThresholds(Method):
    """One threshold of the probability for each class, stored with the weights."""

    @staticmethod
    def is_asked_for(command: str, recipe: Recipe, splits: RunSplits) -> bool:
        return gives_several_labels(recipe.objective, splits.train)

    def num_scored(self, job: "TrainingJob") -> int:
        chosen_on = job.splits.thresholds
        return 0 if chosen_on is None or chosen_on is job.splits.eval else len(chosen_on)

    def results(self, run: "TrainingRun", predictions: Predictions | None, summary: Keys) -> Results:
        job, chosen_on = run.job, run.job.splits.thresholds
        even = Multilabel((multilabel.EVEN,) * job.start.arch.num_classes)
        if predictions is None or predictions.logits_NK is None:
            return {}, even.as_metadata()
        if chosen_on is None:
            stored = even
        elif chosen_on is job.splits.eval:
            stored = multilabel.choose(predictions, chosen_on)
        else:
            stored = multilabel.choose(run.evaluation.predictions_of(chosen_on)[0], chosen_on)
        scores = multilabel.results_of(
            predictions, stored, class_names=job.names_of_classes, fingerprint=job.splits.eval.fingerprint
        )
        keys = ("f1_at_thresholds", "thresholds_chosen_on")
        return {key: scores[key] for key in keys}, stored.as_metadata()
