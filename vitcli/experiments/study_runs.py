"""Runs of a study: each an ordinary run, scored by an ordinary command.

Not merged with `study`, which loads no torch so that mistakes are reported at once; this module loads it.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vitcli import recipe as recipes
from vitcli.data.dataset import DataSet
from vitcli.data.sources.tables import Choices
from vitcli.evaluation.setup import RunSettings, settle_pixels
from vitcli.experiments.study import StudyActions, scoring_recipe
from vitcli.experiments.study_schema import Study
from vitcli.features.fewshot import fewshot
from vitcli.output import run_folder
from vitcli.recipe import Recipe
from vitcli.training.finetune import finetune
from vitcli.training.pretrain import pretrain
from vitcli.training.setup import RunOptions


def work_of(study: Study, options: RunOptions) -> StudyActions:
    """Return the actions for the runs of this study."""
    train = {"pretrain": pretrain, "finetune": finetune}[study.command]
    score = study.score

    # Data sets of the scoring are opened before the first run.
    def check() -> None:
        keys = ("image_column", "label_column", "num_classes", "streaming")
        given = {key: score.set[f"data.{key}"] for key in keys if f"data.{key}" in score.set}
        for name in score.dataset or ():
            DataSet(name, Choices(**given))

    def plan(recipe: Recipe) -> dict[str, Any]:
        return train(recipe, replace(options, dry_run=True, quiet=True))

    # A run is scored by its own evaluation, by fine-tuning or by few-shot.
    def scored(run_dir: Path, dataset: str, out: Path) -> float | None:
        if score.by == "eval":
            return run_folder.finished_summary(run_dir)["top1"]
        keys = score.set | {"data.dataset": dataset, "model.ckpt": str(run_dir)}
        if score.by == "finetune":
            recipe = recipes.load(scoring_recipe(score, dataset), (), keys)
            return finetune(recipe, replace(options, out=out))["top1"]
        # A recipe that is named decides about the preprocessing; the default one leaves it to the run.
        keys |= {"fewshot.shots": [score.shots]}
        default = scoring_recipe(score, dataset)
        recipe = recipes.load_for_inference(score.recipe, (), keys, default=default, command="fewshot")
        settings = RunSettings(options.workers, options.quiet, out)
        result = fewshot(recipe, settings, draws_file=None, arguments=options.arguments)
        return result["shots"][str(score.shots)]["mean"] if result else None

    return StudyActions(
        check=check,
        settle=partial(settle_pixels, command=study.command),
        plan=plan,
        train=lambda recipe, out: train(recipe, replace(options, out=out)),
        score=scored,
    )
