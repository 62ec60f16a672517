"""The runs of a study: each an ordinary one, scored by an ordinary command; no command of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitcli import recipe as recipes
from vitcli.data.dataset import DataSet
from vitcli.experiments.study import StudyActions, scoring_recipe
from vitcli.experiments.study_schema import Study
from vitcli.features.fewshot import fewshot
from vitcli.output import run_folder
from vitcli.recipe import Recipe
from vitcli.training.finetune import finetune
from vitcli.training.pretrain import pretrain
from vitcli.training.setup import RunOptions


def work_of(study: Study, options: RunOptions) -> StudyActions:
    """What is done for one run of this study.

    Args:
        options: of every run; `out` is set for each.
    """
    train = {"pretrain": pretrain, "finetune": finetune}[study.command]
    score = study.score

    def check() -> None:
        for name in score.dataset or ():
            keys = score.set
            DataSet(
                name,
                image_column=keys.get("data.image_column"),
                label_column=keys.get("data.label_column"),
                num_classes=keys.get("data.num_classes"),
                streaming=keys.get("data.streaming", False),
            )

    def plan(recipe: Recipe) -> dict[str, Any]:
        return train(recipe, replace(options, dry_run=True, quiet=True))

    def scored(run_dir: Path, dataset: str, out: Path) -> float | None:
        if score.by == "eval":
            return run_folder.finished_summary(run_dir)["top1"]
        keys = score.set | {"data.dataset": dataset, "model.ckpt": str(run_dir)}
        if score.by == "finetune":
            recipe = recipes.load(scoring_recipe(score, dataset), (), keys)
            return finetune(recipe, replace(options, out=out))["top1"]
        done = fewshot(
            score.recipe,  # a named one has a say about pixels, one that is found leaves them to the run
            (),
            keys | {"fewshot.shots": [score.shots]},
            draws_file=None,
            out=out,
            overwrite=False,
            workers=options.workers,
            quiet=options.quiet,
            arguments=options.arguments,
        )
        return done["shots"][str(score.shots)]["mean"] if done else None

    return StudyActions(check, plan, lambda recipe, out: train(recipe, replace(options, out=out)), scored)
