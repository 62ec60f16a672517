"""Saved predictions: files are read back as written; unwritable or damaged ones are reported."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.evaluation.test_predictions import of_logits
from vitcli.errors import DataError, MachineError
from vitcli.evaluation.predictions import read_predictions, write_predictions

LOGITS_NK = torch.tensor([[3.0, 1, 0], [0, 1, 2], [0, 5, 1]])
ABOUT = {"ckpt": "a", "class_names": ["x", "y", "z"]}


@pytest.mark.parametrize("labels", [[0, 2, 2], [[0, -1], [2, 1], [2, -1]]])
def test_what_is_written_is_read_back(tmp_path, labels):
    results = of_logits(LOGITS_NK, torch.tensor(labels))
    path = str(tmp_path / "new" / "folder" / "p.parquet")

    write_predictions(path, results, np.array([4, 7, 9]), ["a.png", "b.png", "c.png"], ABOUT)

    back = read_predictions(path)
    assert back.rows_N.tolist() == [4, 7, 9] and back.about == ABOUT
    assert back.labels_N == (labels if isinstance(labels[0], int) else [(0,), (2, 1), (2,)])
    assert back.ranks_N.tolist() == results.ranks_N.tolist() == [0, 0, 1]
    table = pq.read_table(path)
    assert table["loss"].to_pylist() == results.losses_N.tolist()
    assert table["place"].to_pylist() == ["a.png", "b.png", "c.png"]
    assert table["top_classes"].to_pylist() == [[0, 1, 2], [2, 1, 0], [1, 2, 0]]
    assert table["top_probabilities"].to_pylist() == results.probabilities_NT.tolist()


def test_the_same_predictions_are_the_same_bytes(tmp_path):
    results = of_logits(LOGITS_NK, torch.tensor([0, 2, 2]))
    for name in ("a", "b"):
        write_predictions(str(tmp_path / f"{name}.parquet"), results, np.arange(3), ["", "", ""], ABOUT)

    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


@pytest.mark.parametrize("folder", ["~", "~root", "caf\udce9", "file:", "s3:"])
def test_the_name_of_a_folder_is_no_address(tmp_path, monkeypatch, folder):
    """pyarrow wrote below the home folder, or not at all, at the end of a training run."""
    monkeypatch.chdir(tmp_path)
    results, path = of_logits(LOGITS_NK, torch.tensor([0, 2, 2])), f"{folder}/p.parquet"

    write_predictions(path, results, np.arange(3), ["", "", ""], ABOUT)

    assert [file.name for file in (tmp_path / folder).iterdir()] == ["p.parquet"]
    assert read_predictions(path).ranks_N.tolist() == [0, 0, 1]


def test_a_full_disk_is_reported_and_an_earlier_file_stays(tmp_path, monkeypatch):
    results = of_logits(LOGITS_NK, torch.tensor([0, 2, 2]))
    path = tmp_path / "p.parquet"
    path.write_bytes(b"earlier")
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(pq, "write_table", lambda *_, **__: (_ for _ in ()).throw(full))

    with pytest.raises(MachineError, match="No space left"):
        write_predictions(str(path), results, np.arange(3), ["", "", ""], ABOUT)

    assert path.read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["missing", "text", "cut", "other", "unnamed"])
def test_a_file_that_holds_no_predictions_is_refused(tmp_path, kind):
    path = tmp_path / "p.parquet"
    if kind == "text":
        path.write_text("no parquet")
    elif kind in ("cut", "unnamed"):
        write_predictions(
            str(path), of_logits(LOGITS_NK, torch.tensor([0, 2, 2])), np.arange(3), ["", "", ""], ABOUT
        )
        if kind == "cut":
            path.write_bytes(path.read_bytes()[:-40])
        else:  # another program has rewritten it
            pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)
    elif kind == "other":
        pq.write_table(pa.table({"row": [1]}), path)

    with pytest.raises(DataError) as told:
        read_predictions(str(path))

    assert len(str(told.value).splitlines()) == 3 and "--save-predictions" in told.value.fix
