"""Passwords and signatures in addresses reach what opens them, and nothing that is written or printed."""

import json
import os

import pytest

from tests.conftest import run, vit
from tests.data.shards.test_faulty_servers import contents, web  # noqa: F401, fixtures
from tests.training.test_finetune import SMALL
from vitcli import recipe
from vitcli.cli import end_of_command
from vitcli.errors import VitError
from vitcli.io.credentials import hide_credentials, with_credentials, without_credentials
from vitcli.output import run_folder
from vitcli.recipe.toml import to_toml

ADDRESS = "https://me:canary@host/{train,test}.parquet?X-Amz-Signature=canary&sig=canary"
PUBLIC = "https://host/{train,test}.parquet"


@pytest.fixture(autouse=True)
def _apart(monkeypatch):
    monkeypatch.setenv("VIT_ADDRESSES", "{}")


def test_an_address_is_known_by_its_public_form_also_to_processes_that_are_started():
    assert without_credentials(ADDRESS) == PUBLIC and with_credentials(PUBLIC) == ADDRESS
    assert json.loads(os.environ["VIT_ADDRESSES"]) == {PUBLIC: ADDRESS}
    renewed = ADDRESS.replace("canary", "renewed")
    assert without_credentials(renewed) == PUBLIC and with_credentials(PUBLIC) == renewed
    for name in ("photos/*?.tar", "them/pets@v2", "hf://datasets/them/pets@v2/a.parquet", PUBLIC):
        assert without_credentials(name) == name
    assert with_credentials("photos") == "photos"


@pytest.mark.parametrize("login", ["me:p@ss@", "me:p/w@x@", "me:pa ss@", "me@", "me:%40@"])
def test_a_password_is_found_however_it_is_written(login):
    assert without_credentials(f"https://{login}host:80/a/b.tar") == "https://host:80/a/b.tar"
    assert login not in hide_credentials(f"GET https://{login}host:80/a/b.tar")


def test_what_is_no_password_stays_in_an_address():
    for address in ("https://host:80/a@b.tar", "s3://bucket/a:b@c.tar", "https://[::1]:80/a@b", "gs://b:80"):
        assert without_credentials(address) == address


def test_credentials_are_masked_as_libraries_encode_and_decode_them():
    without_credentials("https://me:can%61ry@host/a.tar?sig=c%61nary%2Fc&se=1")
    without_credentials("https://me:other1@host/a.tar?sig=renewed")
    text = "403: https://host/a.tar?se=1&sig=canary/c, login='me', password='canary', sig=canary%2Fc, renewed"
    assert "canary" not in hide_credentials(text) and "renewed" not in hide_credentials(text)
    assert "se=1" in hide_credentials(text) and "login='me'" in hide_credentials(text)


@pytest.mark.parametrize("content", ["", "x", "[]", '"{}"'])
def test_a_variable_of_another_program_is_ignored(monkeypatch, content):
    monkeypatch.setenv("VIT_ADDRESSES", content)
    assert hide_credentials("text") == "text" and with_credentials("photos") == "photos"
    assert without_credentials(ADDRESS) == PUBLIC and with_credentials(PUBLIC) == ADDRESS


def test_addresses_that_differ_in_their_credentials_alone_are_no_choices():
    """Both runs of such a selection would take the last one's file."""
    listed = {"model.ckpt": ["https://host/get.npz?f=a", "https://host/get.npz?f=b"]}
    with pytest.raises(VitError, match="differ only") as refused:
        recipe.load("finetune/default", (), {"data.dataset": "photos", "data.dev_fraction": 0.1, **listed})
    assert "f=a" not in hide_credentials(str(refused.value))


def test_a_recipe_holds_no_credentials():
    words = {"data.dataset": ADDRESS, "model.ckpt": "https://host/x.npz?token=canary"}
    loaded = recipe.load("evaluate/default", (), words, training=False)

    assert (loaded.data.dataset, loaded.model.ckpt) == (PUBLIC, "https://host/x.npz")
    assert "canary" not in to_toml(loaded) and with_credentials(loaded.data.dataset) == ADDRESS


def test_a_request_that_is_written_down_holds_no_credentials():
    words = [f"model.ckpt={ADDRESS}"]
    asked = recipe.load_for_inference(None, words, {"data.dataset": ADDRESS}).asked
    assert asked == {"data.dataset": PUBLIC, "model.ckpt": PUBLIC}


def test_no_credentials_are_printed_or_written_into_the_environment_of_a_run(tmp_path):
    without_credentials(ADDRESS)
    text = f"GET {ADDRESS} failed: me:canary@, X-Amz-Signature=canary&sig=canary"
    assert "canary" not in hide_credentials(text)
    assert "canary" not in json.dumps(run_folder.environment(["vit", "--dataset", ADDRESS]))
    for words in (("recipes", "show"), ("report", "--debug"), ("compare", "b"), ("datasets", "show")):
        outcome = run(*words, ADDRESS)
        assert outcome.code and "canary" not in outcome.out + outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a password", "a signature"])
def test_credentials_reach_every_process_and_are_in_no_output(web, tmp_path, kind):  # noqa: F811
    """A server that answers to them alone."""
    web.key = "me:canary@canary" if kind == "a password" else "sig=canary/1"
    login, query = ("me:can%61ry%40canary@", "") if kind == "a password" else ("", "?sig=canary%2F1")

    def data() -> str:
        return f"{web.address.replace('://', '://' + login)}/{{train-{{0..2}},test-0}}.parquet{query}"

    words = [word for word in SMALL if word not in ("--lr", "0.02")]
    words += ["--batch-size", 4, "--steps", 3, "--set", "data.num_classes=2"]
    streamed = ("--set", "data.streaming=true", "--set", "data.shuffle_window=8")
    two, ends = ("--num-processes", 2), ("--lr", 0.02, "--out", tmp_path / "run")
    chosen = ("--lr", "0.01,0.02", "--set", "data.dev_fraction=0.25", "--out", tmp_path / "chosen")
    commands = [
        (5, *words, *streamed, *ends, *two, "--dataset", data().replace("can", "dog"), "--debug"),
        (0, *words, *streamed, *ends, *two, "--dataset", data()),
        (0, *words, *chosen, *two, "--arms-parallel", "--dataset", data()),
        (0, "evaluate", "--ckpt", tmp_path / "run", "--dataset", data(), *two, "--out", tmp_path / "scores"),
        (5, "evaluate", "--ckpt", tmp_path / "run", "--dataset", data().replace("can", "dog"), *two),
    ]
    for expected, *command in commands:
        ended = vit(*command, timeout=300)
        assert ended.returncode == expected, ended.stdout + ended.stderr
        said = (ended.stdout + ended.stderr).encode()
        for text in (said, *(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())):
            assert b"anary" not in text and b"n%61ry" not in text, (command, text[-2000:])
        assert "Traceback" not in ended.stderr or "--debug" in command
    print(f"{kind}: {len(commands)} commands on two processes")


@pytest.mark.slow
def test_canaries_in_the_environment_and_in_addresses_are_in_no_output(web, tmp_path, monkeypatch, photos):  # noqa: F811
    """Every command on data behind a password, with tokens in the environment, also where it fails."""
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "hf_canaryCANARYcanary")
    monkeypatch.chdir(tmp_path)
    place = web.address.replace("http://", "http://me:canary@")
    data = f"{place}/{{train-0,test-0}}.parquet?X-Amz-Signature=canary&token=canary"
    train = [*SMALL, "--steps", 2, "--batch-size", 4]
    commands = [
        (0, *train, "--dataset", data, "--out", "run"),
        (0, *train, "--dataset", data.replace("canary", "canary2"), "--out", "run"),
        (0, *train, "--dataset", data, "--out", "tracked", "--track", "tensorboard"),
        (0, *train, "--dataset", data, "--out", "sweep", "--set", "train.runs=2"),
        (0, *train, "--dataset", data, "--out", "plan", "--dry-run"),
        (0, "evaluate", "--ckpt", "run", "--dataset", data, "--out", "ev", "--save-predictions", "p.parquet"),
        (0, "evaluate", "--ckpt", "run", "--dataset", data, "--json"),
        (0, "fewshot", "--ckpt", "run", "--dataset", data, "--shots", 1, "--out", "few"),
        (0, "embed", "--ckpt", "run", "--dataset", data, "--out", "e.safetensors"),
        (0, "inspect", "--ckpt", "run", "--dataset", data, "--out", "inside"),
        (0, "datasets", "check", data),
        (0, "report", "run", "sweep", "--out", "page.html"),
        (0, "export", "run", "folder"),
        (2, *train, "--dataset", data, "--out", "run", "--seed", 9),
        (3, *train, "--dataset", f"{place}/gone.parquet?sig=canary", "--out", "gone", "--debug"),
        (4, "evaluate", "--ckpt", f"{place}/x.npz?sig=canary", "--dataset", data, "--debug"),
        (4, "evaluate", "--ckpt", f"{web.address}/x.npz?sig=canary", "--dataset", data, "--debug"),
        (3, "predict", data, "--ckpt", "run"),
        (2, "report", data),
        (2, *train, "--set", f"data.datasets={data}", "--out", "wrong"),
    ]
    for expected, *words in commands:
        outcome = run(*words)
        assert outcome.code == expected, (words, outcome)
        assert "canary" not in (outcome.out + outcome.err).lower(), (words, outcome)
        for path in tmp_path.rglob("*"):
            assert "canary" not in str(path)
            assert not path.is_file() or b"canary" not in path.read_bytes().lower(), (words, path)
    print(f"{len(commands)} commands, no canary")


def test_an_error_names_an_address_without_its_password_for_people_and_as_json(capsys):
    without_credentials(ADDRESS)
    error = VitError(f"no {ADDRESS}", where=f"--dataset {ADDRESS}", fix=f"name another than {ADDRESS}")

    for arguments in ([], ["--json"]):
        assert end_of_command._print_error(error, ["evaluate", *arguments]) == 2
        shown = capsys.readouterr()
        assert "canary" not in shown.out + shown.err and (shown.out + shown.err).count("***host/") == 3
    told = json.loads(shown.out)["error"]
    assert told.keys() == {"message", "where", "fix", "code", "command"} and told["code"] == 2


def test_an_error_is_the_exit_code_alone_where_standard_error_is_closed(monkeypatch):
    class Closed:
        def write(self, text: str) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(end_of_command.sys, "stderr", Closed())
    assert end_of_command._print_error(VitError("a", where="b", fix="c"), ["evaluate"]) == 2


def test_a_report_of_a_bug_has_the_traceback_without_a_password(tmp_path):
    bug = ZeroDivisionError(f"no bytes of {ADDRESS}")
    bug.run_dir = tmp_path
    without_credentials(ADDRESS)

    error = end_of_command._internal_error(bug)

    (report,) = tmp_path.iterdir()
    assert str(report) in error.where
    assert "ZeroDivisionError: no bytes of https://***host/" in report.read_text()
    assert "canary" not in report.read_text()
