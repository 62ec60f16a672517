"""What runs and evaluations have predicted: confusion, accuracy by class, and the most confident mistakes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitcli.errors import DataError
from vitcli.output.document import Cell, Header, Row, Table, fraction_cell
from vitcli.output.run_folder import MISTAKES, PREDICTIONS
from vitcli.output.summaries import Mistake, Mistakes, read
from vitcli.output.text import count_of
from vitcli.report.runs import EvaluationRecord, Names, Run, RunCollection

MOST_TOGETHER = 4  # results whose accuracies by class share a table; of more there is none
MOST_CLASSES = 20  # rows of that table, the weakest
WEAKEST, ENOUGH = 3, 2  # classes named in a caption, and the images that each has at the least
Pair = tuple[str, str, int]  # label, prediction and number of images


@dataclass(frozen=True)
class Predicted:
    """The predictions of a run or an evaluation.

    Attributes:
        name: for captions, with network and data set.
        classes: in the order of the class numbers, those that do not occur among them.
        confusion: pairs that occur; none of images with several labels.
    """

    path: Path
    name: str
    classes: tuple[str, ...]
    confusion: tuple[Pair, ...]
    mistakes: tuple[Mistake, ...]

    @property
    def by_class(self) -> dict[str, tuple[int, int]]:
        """Return the number of right predictions and of images of each class that has images."""
        right, count = Counter(), Counter()
        for label, prediction, number in self.confusion:
            count[label] += number
            right[label] += number * (label == prediction)
        return {name: (right[name], count[name]) for name in self.classes if count[name]}

    @property
    def weakest(self) -> str:
        """Return the classes of lowest accuracy in words; empty if there are too few to choose from."""
        counts = ((name, right, count) for name, (right, count) in self.by_class.items())
        known = [(name, right / n, n) for name, right, n in counts if n >= ENOUGH and right < n]
        lowest = sorted(known, key=lambda entry: entry[1])[:WEAKEST]
        return ", ".join(f"{name} {accuracy:.0%} of {count}" for name, accuracy, count in lowest)


def all_predicted(collection: RunCollection, names: Names) -> list[Predicted]:
    """Read the predictions of runs and evaluations that have some; damaged ones are left out with a note."""
    predicted = []
    for record in (*collection.runs, *collection.evaluations):
        try:
            if isinstance(record, Run):
                classes, confusion = _of_run(record)
            else:
                confusion = record.confusion
                occurring = [name for label, prediction, _ in confusion for name in (label, prediction)]
                classes = tuple(dict.fromkeys([*(record.summary.per_class or {}), *occurring]))
            mistakes = (
                tuple(read(record.path / MISTAKES, Mistakes).mistakes) if _has(record, MISTAKES) else ()
            )
        except DataError as error:
            collection.left_out.append((record.path, error.message))
            continue
        if confusion or mistakes:
            name = f"{record.summary.model}, {names.folder(record.path)}, on {names.data(record.dataset)}"
            repeats = len(record.summary.runs) if isinstance(record, Run) else 1
            name += f", first of {repeats} runs" if repeats > 1 else ""
            predicted.append(Predicted(record.path, name, classes, confusion, mistakes))
    return predicted


def are_few(collection: RunCollection) -> bool:
    """Return whether so few results have predictions that a table can have all of them."""
    with_some = [run for run in collection.runs if _has(run, PREDICTIONS)]
    with_some += [record for record in collection.evaluations if record.confusion]
    return len(with_some) <= MOST_TOGETHER


def _has(record: Run | EvaluationRecord, name: str) -> bool:
    return bool(record.summary) and (record.path / name).is_file()


def _of_run(run: Run) -> tuple[tuple[str, ...], tuple[Pair, ...]]:
    """Return classes and confusion of a finished run; nothing where its predictions are not there."""
    if not _has(run, PREDICTIONS):
        return (), ()
    from vitcli.evaluation.predictions import read_predictions  # loads pyarrow

    saved = read_predictions(str(run.path))
    names = saved.about.get("class_names")
    if not isinstance(names, list) or any(isinstance(label, tuple) for label in saved.labels_N):
        return (), ()
    counts = Counter(zip(saved.labels_N, saved.predicted_N, strict=True))
    numbers = {number for pair in counts for number in pair}
    if not all(isinstance(number, int) and 0 <= number < len(names) for number in numbers):
        fix = "run the command that made the folder again, or leave the folder out"
        what = f"{PREDICTIONS} is damaged: a class number without a name"
        raise DataError(what, where=str(run.path / PREDICTIONS), fix=fix)
    classes = tuple(map(str, names))
    pairs = sorted(counts.items())
    return classes, tuple((classes[label], classes[predicted], count) for (label, predicted), count in pairs)


def by_class(predicted: Sequence[Predicted], names: Names) -> Table | None:
    """Return the accuracy of each class, the weakest first; None of none or too many results."""
    results = [result for result in predicted if result.confusion]
    if not 1 <= len(results) <= MOST_TOGETHER:
        return None
    counts = [result.by_class for result in results]

    def mean_accuracy(name: str) -> float:
        accuracies = [of[name][0] / of[name][1] for of in counts if name in of]
        return sum(accuracies) / len(accuracies)

    classes = sorted(dict.fromkeys(name for of in counts for name in of), key=mean_accuracy)
    rows = [
        Row(Header(name), tuple(_class_cell(*of[name]) if name in of else Cell() for of in counts))
        for name in classes[:MOST_CLASSES]
    ]
    some = f" The {MOST_CLASSES} weakest of {len(classes):,} classes." if len(classes) > MOST_CLASSES else ""
    caption = (
        "Top-1 accuracy in % of the images of each class, the weakest first; small print: their number."
        f"{some}"
    )
    headers = tuple(Header(names.folder(result.path), folder=result.path) for result in results)
    corner = Header("class", kind="text")
    return Table("classes", "Accuracy by class", caption, corner, headers, tuple(rows))


def _class_cell(right: int, count: int) -> Cell:
    return fraction_cell(right / count, note=f"of {count_of(count, 'image')}")


def same_of(others: Sequence[Predicted]) -> str:
    """Return the end of a caption that says whose figure is the same; empty for none."""
    of_others = ", and ".join(f"that of {other.name}" for other in others)
    return f"; {of_others} is the same" if others else ""


def mistakes_caption(result: Predicted, shown: int, others: Sequence[Predicted]) -> str:
    """Return the caption of the images of a result's mistakes, which are those of the others, too."""
    total = sum(count for label, prediction, count in result.confusion if label != prediction)
    number = f"{shown} " if shown > 1 else ""
    kind = f"most confident of {total:,}" if total > shown else "most confident"
    noun = "mistake" if max(shown, total) == 1 else "mistakes"
    return (
        f"The {number}{kind} {noun} of {result.name}: what was predicted with which probability, the label, "
        f"and the file{same_of(others)}."
    )
