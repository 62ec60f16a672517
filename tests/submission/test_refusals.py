"""What `--submit` refuses: before anything is submitted, in three lines, with exit code 2."""

from pathlib import Path

import pytest

from tests.conftest import run
from vitcli.errors import VitError
from vitcli.submission.submission import prepare

ON_THE_VOLUME = ("--submit-set", "image=me/vit:1", "--submit-set", "volume=shared")


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (("--submit-set", "imag=x"), "no key 'imag', did you mean 'image'?", "one of image, "),
        (("--submit-set", "mem=8"), "no key 'mem', did you mean 'mem_gb'?", "one of image, "),
        (("--submit-set", "flavor=t4-small"), "print:k8s has no key 'flavor'", "one of image, "),
        (("--submit-set", "partition"), "no key 'partition'", "one of image, "),
        (("--submit-set", "name="), "name cannot be ''", "--submit-set name=photos"),
        (("--submit-set", "mem_gb=0"), "mem_gb cannot be '0'", "mem_gb=64"),
        (("--submit-set", "mem_gb=8GB"), "mem_gb cannot be '8GB'", "mem_gb=64"),
        (("--submit-set", "volume=b"), "volume is given twice", "one --submit-set volume="),
        (("--overwrite",), "--overwrite cannot be submitted", "a new folder"),
        (("--dry-run",), "--dry-run cannot be submitted", "leave --submit out"),
        (("--out", "runs/photos"), "is not on the volume", "such as --out /runs/photos"),
        (("--out", "/photos"), "is not on the volume", "such as --out /runs/photos"),
        (("--dataset", "https://me:secret@host/photos.csv"), "password of an address", "on the volume"),
        (("--submit-workers", "0"), "--submit-workers must be greater than or equal to 1", "--help"),
        (("--submit", "print:sk"), "--submit is 'print:sk', did you mean 'print:sky'?", "one of "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_is_refused_with_the_option_and_what_works(words, what, fix):
    outcome = run("finetune", "--out", "/runs/photos", "--submit", "print:k8s", *ON_THE_VOLUME, *words)

    assert (outcome.code, outcome.out) == (2, "")
    error, where, advice = outcome.err.strip().splitlines()[-3:]
    assert what in error and fix in advice and where.startswith("  where: ")
    assert "secret" not in outcome.err


@pytest.mark.parametrize("missing", ["image", "volume"])
def test_a_key_that_the_place_needs_is_named(missing):
    given = [word for key in {"image", "volume"} - {missing} for word in ("--submit-set", f"{key}=x")]
    outcome = run("study", "compute", "demo", "--out", "/runs/x", "--submit", "print:sky", *given)

    assert outcome.code == 2 and f"print:sky needs {missing}" in outcome.err


def test_a_process_of_a_launcher_submits_nothing(monkeypatch):
    monkeypatch.setenv("RANK", "0")

    with pytest.raises(VitError) as refused:
        prepare("print:k8s", 2, ["image=x", "volume=y"], Path("/runs/x"), ["finetune"])
    assert "torchrun" in refused.value.fix


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ((), "slurm needs timeout_min"),
        (
            ("timeout_min=5", "signal_delay_s=300"),
            "before the start",
        ),  # for ever: it would be requeued at once
        (("timeout_min=1:00:00",), "timeout_min cannot be '1:00:00'"),
        (("timeout_min=60", "time=5"), "slurm has no key 'time'"),
    ],
)
def test_a_job_of_slurm_needs_time_to_save(given, what):
    words = [word for pair in given for word in ("--submit-set", pair)]
    outcome = run("finetune", "--out", "/runs/x", "--submit", "slurm", *words)

    assert outcome.code == 2 and what in outcome.err


def test_hugging_face_jobs_take_one_worker():
    words = ("--submit", "print:hf", "--submit-workers", "2", *ON_THE_VOLUME)

    assert "share no file system that renames folders" in run("pretrain", "--out", "/runs/x", *words).err


@pytest.mark.parametrize("words", [("--submit-workers", "2"), ("--submit-set", "name=x")], ids=" ".join)
def test_options_of_submit_belong_to_it(words):
    outcome = run("finetune", "--out", "x", *words)

    assert outcome.code == 2 and "--submit-set belong to --submit" in outcome.err


def test_with_json_the_refusal_is_the_object():
    error = run("finetune", "--submit", "print:k8s", *ON_THE_VOLUME, "--json").json["error"]

    assert error["message"] == "the workers need one folder" and error["command"] == "finetune"
