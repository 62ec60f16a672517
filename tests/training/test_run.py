"""Checks of a run before its first step."""

import pytest

from tests.conftest import run
from tests.training.test_finetune import SMALL
from vitcli.errors import MachineError
from vitcli.training.run import check_shared


class SecondProcess:
    """The second of two processes; the first one writes into `first`."""

    is_main = False

    def on_main(self, action):
        return "the first one's token" if action.__name__ == "<lambda>" else None

    def any(self, mine):
        return mine


@pytest.mark.parametrize("token", [None, "of another run"])
def test_a_run_folder_that_a_process_does_not_see_is_refused(tmp_path, token):
    if token:
        (tmp_path / ".tmp-shared").write_text(token)

    with pytest.raises(MachineError, match="not every process"):
        check_shared(SecondProcess(), tmp_path)
    (tmp_path / ".tmp-shared").write_text("the first one's token")
    check_shared(SecondProcess(), tmp_path)


def test_a_probe_that_cannot_be_opened_is_an_error_before_the_run_folder_exists(photos, tmp_path):
    words = (*SMALL, "--dataset", photos, "--steps", 2, "--out", tmp_path / "run")
    ended = run(*words, "--set", "eval.probe=/nowhere/pictures", "--set", "eval.probe_shots=1")

    assert ended.code == 3 and "/nowhere/pictures" in ended.out
    assert not (tmp_path / "run").exists()
