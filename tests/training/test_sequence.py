"""Many runs in a row: what is finished is skipped, what is stopped names the whole sequence."""

from pathlib import Path

import pytest

from vitcli.errors import Stopped
from vitcli.output.shared_work import run_all


def test_finished_items_are_not_trained_again_and_results_come_in_order():
    trained, summaries = [], []

    def train(item: str) -> str:
        trained.append(item)
        return f"{item} now"

    results = run_all(
        ["a", "b", "c"],
        train,
        Path("all"),
        finished={"b": "b before"}.get,
        on_done=lambda item, result: summaries.append((item, result)),
    )

    assert results == ["a now", "b before", "c now"]
    assert trained == ["a", "c"]
    assert summaries == [("a", "a now"), ("b", "b before"), ("c", "c now")]


def test_a_stopped_item_names_the_folder_of_the_sequence_and_ends_it():
    done = []

    def train(item: str) -> str:
        if item == "b":
            raise Stopped(15, "stopped after step 3", out=Path("all/b"))
        return item

    with pytest.raises(Stopped) as stopped:
        run_all(["a", "b", "c"], train, Path("all"), on_done=lambda item, _: done.append(item))

    assert stopped.value.out == Path("all") and done == ["a"]
