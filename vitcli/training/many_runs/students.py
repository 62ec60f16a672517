"""The distilled student and a baseline without its teacher, of which the better is delivered.

Both are ordinary resumable runs below OUT/arms, from the same start and for as many steps, without the dev
split, which judges between them (`distill.compare`, `is_not_worse`). OUT is then a run folder of what is
delivered.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from vitcli.data.seen_images import trained_rows
from vitcli.data.split import Split
from vitcli.data.transforms import preprocessing_of
from vitcli.errors import VitError
from vitcli.evaluation import inference
from vitcli.evaluation.setup import settings_of_run
from vitcli.output import run_folder
from vitcli.output.run_folder import ARMS
from vitcli.output.summaries import TrainingSummary
from vitcli.recipe import Recipe
from vitcli.training.many_runs.average import SIGNIFICANT, DevScore, paired_test
from vitcli.training.many_runs.runs import ManyRuns, SharedParts, Stage
from vitcli.training.many_runs.sweep_results import plan_of_all, totals_of
from vitcli.training.setup import RunOptions
from vitcli.training.splits import with_unlabelled
from vitcli.training.teacher import check_teachers
from vitcli.training.text import run_line
from vitcli.weights.io import read_weights
from vitcli.weights.load import load_for_inference

BASELINE, DISTILLED = STUDENTS = ("baseline", "distilled")  # folders, and what a summary says is delivered


def refuse_without_teacher(recipe: Recipe) -> None:
    """Refuse keys of distillation that nothing would read, and a choice between more than two runs."""
    distill, where = recipe.distill, "recipe section [distill]"
    if distill is None:
        return
    if not distill.teacher:
        raise VitError(
            "no teacher is named",
            where=where,
            fix="--set distill.teacher=CKPT, or vit distill --teacher CKPT",
        )
    if recipe.choices and distill.compare:
        key = next(iter(recipe.choices))
        raise VitError(
            f"distill.compare makes two runs, and {key} lists values to choose from",
            where=f"{where}, recipe key {key}",
            fix="--set distill.compare=false chooses between the values alone",
        )


def is_not_worse(distilled: DevScore, baseline: DevScore, *, mcnemar_p: float) -> bool:
    """Return whether the distilled student is delivered.

    It is if it has as many images right; and if it has fewer with a smaller loss, unless McNemar's test finds
    it worse. A dev split is often so small that both have a few right that the other has wrong, by chance.
    """
    is_found_worse = mcnemar_p < SIGNIFICANT or distilled.loss >= baseline.loss
    return distilled.num_right >= baseline.num_right or not is_found_worse


class Students:
    """The two runs, and the folder that delivers one of them."""

    def __init__(self, recipe: Recipe, options: RunOptions, shared: SharedParts):
        self.recipe, self.options, self.shared = recipe, options, shared
        self.runs = ManyRuns(recipe, options, shared, counts=(2,), make_run=shared.make_run)

    def plan(self) -> dict[str, Any]:
        """Return the plan of the run with the teacher, and the totals of both."""
        baseline, distilled = self._recipes()
        plan, others = self.runs.plans(distilled, [baseline])
        return plan_of_all(self.recipe, plan, [plan, *others], {"num_arms": 0, "num_runs": 2})

    def run(self) -> dict[str, Any]:
        """Make both runs, write the folder that holds them and return its summary."""
        train, _ = self.shared.data.train_and_eval(self.recipe)
        check_teachers(self.recipe, train)
        with_unlabelled(train, self.recipe.distill.images or (), ())  # names without an image are refused
        with self.runs.opened() as path:
            self.shared.progress.note(
                f"a baseline without the teacher, then the distilled student, into {path}"
            )
            jobs = [(path / ARMS / name, each) for name, each in zip(STUDENTS, self._recipes(), strict=True)]

            def log(number: int, summary: dict[str, Any]) -> None:
                scores = summary["runs"][0]
                self.runs.log({"student": STUDENTS[number], **scores}, jobs[number][0])
                line = run_line(STUDENTS[number], scores, summary["num_eval_examples"])
                self.shared.progress.note(line)

            summaries = self.runs.train(Stage(jobs, lambda number: f"student {number + 1} of 2", log))

            def results() -> tuple[dict[str, Any], dict[str, Any]]:
                record = self._record([job_path for job_path, _ in jobs], summaries)
                delivered = summaries[STUDENTS.index(record["delivered"])]
                return self._summary(record, delivered, summaries), delivered

            return self.runs.deliver(results)

    def _recipes(self) -> tuple[Recipe, Recipe]:
        """Return the recipes of baseline and distilled student."""
        with_teacher = self.runs.settled({"distill.compare": False, "data.hold_out_dev": True})
        return with_teacher.model_copy(update={"distill": None}), with_teacher

    def _record(self, paths: list[Path], summaries: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the scores of the two on the dev split, and which one is delivered."""
        dev, teachers = self.shared.data.held_out_dev(self.recipe), self.recipe.distill.teacher
        scores = [self._score(path, dev) for path in paths]
        trained_N = trained_rows(dev, self.shared.data.trained_before())
        test = paired_test(scores[1], scores[:1])
        return {
            "teacher": list(teachers),
            "teacher_top1": _known_top1(teachers, summaries[1]),
            "dev_split": dev.name,
            "num_dev_examples": len(dev),
            "num_dev_seen": None if trained_N is None else int(trained_N.sum()),
            **{
                name: {"top1": summary["top1"], "dev_top1": score.top1, "dev_loss": score.loss}
                for name, summary, score in zip(STUDENTS, summaries, scores, strict=True)
            },
            "difference": test["difference_to_best"],
            "interval": test["interval"],
            "mcnemar_p": test["mcnemar_p"],
            "delivered": DISTILLED if is_not_worse(*scores[::-1], mcnemar_p=test["mcnemar_p"]) else BASELINE,
        }

    def _score(self, path: Path, dev: Split) -> DevScore:
        """Score the weights of a run on the dev split."""
        runtime, progress = self.shared.runtime, self.shared.progress
        settings = settings_of_run(self.recipe, runtime, progress, workers=self.options.workers)
        preprocessing = preprocessing_of(self.recipe.data)
        weights = read_weights(str(path), quiet=True)
        size, method = preprocessing.image_size, self.recipe.model.posemb_resample
        model, arch = load_for_inference(weights, size, method, runtime.device, progress)
        about = (model, dev, preprocessing, settings)
        return DevScore.of(inference.predict_split(*about, num_classes=arch.num_classes)[0])

    def _summary(
        self, record: dict[str, Any], delivered: dict[str, Any], summaries: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return TrainingSummary.written(
            {
                **delivered,
                "run_dir": str(self.runs.path),
                **totals_of(summaries),
                "peak_memory_gib": max(summary["peak_memory_gib"] for summary in summaries),
                "distill": record,
                "weights": str(self.runs.path / run_folder.WEIGHTS),
            }
        )


def _known_top1(teachers: tuple[str, ...], student: dict[str, Any]) -> float | None:
    """Return the accuracy of a single teacher on the images that its students report on, if it has a run."""
    folder = run_folder.folder_of(teachers[0]) if len(teachers) == 1 else None
    with suppress(VitError):  # of another version
        summary = (run_folder.finished_summary(folder) if folder else None) or {}
        if summary.get("eval_fingerprint") == student["eval_fingerprint"]:
            return summary.get("top1")
    return None
