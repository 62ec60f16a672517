"""A table of a report: what it says in rows and columns. How it looks is a matter of the format."""

from pathlib import Path

from vitcli.output.document import Head
from vitcli.output.text import short_names
from vitcli.report.grouping import Row
from vitcli.report.runs import Material


class Names:
    """What a person calls data sets and run folders; two of one name are told apart by what comes before."""

    def __init__(self, material: Material):
        several = (*material.runs, *material.fewshots, *material.vtabs, *material.scored)
        tasks = [run for vtab in material.vtabs for run in vtab.runs]
        self._data = short_names(
            one.dataset for one in (*material.runs, *material.fewshots, *material.scored)
        )
        known = [one.ckpt for one in material.runs if one.ckpt]
        self._ckpts = short_names(known)
        self._folders = short_names(str(one.path) for one in (*several, *tasks))

    def data(self, dataset: str) -> str:
        return self._data.get(dataset, dataset) or "unknown"

    def ckpt(self, ckpt: str) -> str:
        return self._ckpts[ckpt]

    def folder(self, path: Path) -> str:
        return self._folders[str(path)]

    def row(self, row: Row) -> Head:
        """The head of a row: the data set; its split and what else there is in small print."""
        dataset, *more = row
        return Head(self.data(dataset), ", ".join(filter(None, more)))
