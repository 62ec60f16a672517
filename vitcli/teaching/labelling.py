"""A session of `vit label`: which image is shown, what a click does, and how it is undone.

Each state has a number, and a click names the state that it was made on: a click on another one, of a second
tab or a second tap, changes nothing. While a person looks at an image, the next one is chosen as if the guess
were right, so that a browser can fetch it ahead.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vitcli.teaching.choosing import Chooser
from vitcli.teaching.labels_file import LabelsFile, class_named
from vitcli.teaching.outlook import Outlook

NONE, IN_FILE = "", "none"  # the status of an image of none of the classes, and its label in the file of such
NUM_GUESSES, NUM_REASONS, NUM_COPIES = 3, 3, 6  # on the page
SUSPECT_EVERY = 10  # images, one is a label that the others contradict


class Labelling:
    """The images of a folder, their labels, and the one that is shown; every method may be called by threads.

    Args:
        names: of the images, as in the files.
        labels, none: the files of labels, and of images of no class.
        classes: known before there is a label, in their order.
        groups_N: of near copies, which are labelled together.
        is_review: show only labels that the others contradict.
    """

    def __init__(
        self,
        names: Sequence[str],
        features_ND: np.ndarray,
        labels: LabelsFile,
        none: LabelsFile,
        *,
        classes: Iterable[str] = (),
        groups_N: np.ndarray,
        is_review: bool = False,
    ):
        self.names, self.classes, self.is_review = names, [*classes], is_review
        # An image that came after its near copy was labelled is not of its group, or nobody would be asked.
        of_name = dict.fromkeys(none.labels, NONE) | labels.labels
        is_new_N = np.array([name not in of_name for name in names])
        groups_N = np.unique(np.stack([groups_N, is_new_N]), axis=1, return_inverse=True)[1].ravel()
        self._labels, self._none, self._groups_N = labels, none, groups_N
        self._chooser, self._outlook = Chooser(features_ND, groups_N), Outlook(features_ND, groups_N)
        self._members: dict[int, list[int]] = {}
        for row, group in enumerate(groups_N.tolist()):
            self._members.setdefault(group, []).append(row)
        self._status: dict[int, str] = {}  # of labelled images the class, of others NONE
        self._skipped: dict[int, None] = {}  # in order
        self._doubted: dict[int, tuple[int, float]] = {}  # labels: the class of the others, their own chance
        self._confirmed: set[int] = set()  # labels that have been shown
        self._undo: list[tuple[int, dict[int, str | None]]] = []
        self._number = self._num_chosen = 0
        self._mutex, self._outlook_mutex = threading.Lock(), threading.Lock()
        self._note({row: of_name[name] for row, name in enumerate(names) if name in of_name})
        self._shown, self._upcoming = self._choose(()), None

    def state(self) -> dict[str, Any]:
        """Return everything that the page shows."""
        with self._mutex:
            return self._state()

    def look_ahead(self) -> int | None:
        """Return the image after the one shown, chosen as if the guess for it were right; None for none."""
        with self._mutex:
            if self._upcoming is None and self._shown is not None:
                copies = self._members[int(self._groups_N[self._shown])]
                is_open = self._shown not in self._status
                if is_open:
                    guess_K, _ = self._chooser.guess(self._shown)
                    self._chooser.set_labels(self._alike(self._shown), next(iter(guess_K), 0))
                self._upcoming = self._choose(copies)
                if is_open:
                    self._chooser.set_labels(self._alike(self._shown), None)
            return self._upcoming

    def outlook(self) -> str:
        """Go on with the sentence about how many labels make sense, and return the latest."""
        with self._outlook_mutex:
            return self._outlook.step(self._status)

    def click(self, click: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a person asks for, and return the state after it; the labels are on disk then.

        Args:
            click: the number of the "state", and one of "label" (a name), "none", "skip" and "undo".

        Raises:
            VitError: the name of a class cannot be one.
            MachineError: a label cannot be written; the state is unchanged.
        """
        with self._mutex:
            if click.get("state") != self._number:
                return self._state() | {"is_stale": True}
            if click.get("undo"):
                self._go_back()
            elif self._shown is not None:
                self._answer(self._shown, click)
            self._number += 1
            return self._state()

    def _answer(self, row: int, click: Mapping[str, Any]) -> None:
        changes: dict[int, str | None] = {}
        if click.get("none"):
            changes = dict.fromkeys(self._alike(row), NONE)
        elif not click.get("skip"):
            changes = dict.fromkeys(self._alike(row), class_named(str(click.get("label", "")), self.classes))
        elif row not in self._status:
            self._skipped[row] = None
        earlier, was_labelled = {other: self._status.get(other) for other in changes}, row in self._status
        self._put(changes)
        if was_labelled:
            self._confirmed.add(row)
        self._undo.append((row, earlier))
        self._shown = self._choose(()) if self._upcoming is None else self._upcoming
        self._upcoming = None

    def _go_back(self) -> None:
        if self._undo:
            row, earlier = self._undo[-1]
            self._put(earlier)
            self._undo.pop()
            self._skipped.pop(row, None)
            self._confirmed.discard(row)
            self._upcoming, self._shown = self._shown, row

    def _put(self, changes: Mapping[int, str | None]) -> None:
        """Write what changes to the disk, what is added before what is taken away; then remember it."""
        of_class = {self.names[row]: status or None for row, status in changes.items()}
        of_none = {self.names[row]: IN_FILE if status == NONE else None for row, status in changes.items()}
        writes = [(self._labels, of_class), (self._none, of_none)]
        for file, content in reversed(writes) if NONE in changes.values() else writes:
            file.set(content)
        self._note({row: status for row, status in changes.items() if status != self._status.get(row)})

    def _note(self, changes: Mapping[int, str | None]) -> None:
        for status in dict.fromkeys(changes.values()):
            rows = [row for row, other in changes.items() if other == status]
            if status and status not in self.classes:
                self.classes.append(status)
            self._chooser.set_labels(rows, self.classes.index(status) if status else None)
        known = self._status | changes
        self._status = {row: status for row, status in known.items() if status is not None}

    def _choose(self, copies: Sequence[int]) -> int | None:
        """Return an image to show that is none of these; None if there are no more."""
        self._num_chosen += 1
        is_turn = self._num_chosen % SUSPECT_EVERY == 0
        if (self.is_review or is_turn) and (row := self._contradiction(copies)) is not None:
            return row
        if self.is_review:
            return None
        none = [row for row, status in self._status.items() if status == NONE]
        row = self._chooser.next_row({*copies, *none, *self._skipped})
        if row is None and (skipped := [row for row in self._skipped if row not in copies]):
            row = skipped[0]
            del self._skipped[row]
        return row

    def _contradiction(self, copies: Sequence[int]) -> int | None:
        """Return an image whose label the others contradict; where none is known, they are asked anew."""
        for is_known in (True, False) if self.is_review else (False,):
            if not is_known:
                self._doubted = {row: (other, chance) for row, other, chance in self._chooser.suspects()}
            for row in self._doubted:
                if row not in self._confirmed and row not in copies:
                    return row
        return None

    def _state(self) -> dict[str, Any]:
        counts = Counter(self._status.values())
        return {
            "folder": self._labels.path.absolute().parent.name,
            "state": self._number,
            "is_review": self.is_review,
            "num_images": len(self.names),
            "num_labels": counts.total() - counts[NONE],
            "num_none": counts[NONE],
            "num_skipped": len(self._skipped),
            "classes": [{"name": name, "count": counts[name]} for name in self.classes],
            "undo": self.names[self._undo[-1][0]] if self._undo else None,
            "shown": None if self._shown is None else self._about(self._shown),
            "forecast": self._outlook.text,
        }

    def _about(self, row: int) -> dict[str, Any]:
        """Return an image with its guess; of a doubted label the class of the others, and its own chance."""
        label, copies = self._status.get(row), self._members[int(self._groups_N[row])]
        if label and row in self._doubted:
            other, chance = self._doubted[row]
            guess = [(other, None), (self.classes.index(label), chance)]
        else:
            guess = [*zip(*(part.tolist() for part in self._chooser.guess(row)), strict=True)][:NUM_GUESSES]
        alike = [other for other in self._alike(row) if other != row]
        reasons = [other for other in self._chooser.reasons(row, NUM_REASONS + 1) if other not in copies]
        return {
            "row": row,
            "name": self.names[row],
            "num_copies": len(alike),
            "copies": alike[:NUM_COPIES],
            "label": label,
            "guess": [{"class": self.classes[number], "probability": chance} for number, chance in guess],
            "reasons": [{"row": other, "class": self._status[other]} for other in reasons[:NUM_REASONS]],
        }

    def _alike(self, row: int) -> list[int]:
        """Return the near copies of an image that have the same label, itself among them."""
        copies, label = self._members[int(self._groups_N[row])], self._status.get(row)
        return [other for other in copies if self._status.get(other) == label]
