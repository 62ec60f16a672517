"""The files of `--submit print:...`, by the tools' own schemas where their packages are here."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import Outcome, run

LINE = ("finetune", "--lr", "0.01,0.03", "--runs", "3", "--out", "/runs/My photos")
WORKER = ["vit", *LINE]
ON_THE_VOLUME = ("image=me/vit:1", "volume=shared")


def submitted(place: str, *given: str, words: tuple[str, ...] = LINE) -> Outcome:
    settings = [word for pair in (*ON_THE_VOLUME, *given) for word in ("--submit-set", pair)]
    return run(*words, "--submit", f"print:{place}", *settings)


def printed(place: str, *given: str, words: tuple[str, ...] = LINE) -> str:
    outcome = submitted(place, *given, words=words)
    assert outcome.code == 0, outcome.err
    return outcome.out


def test_the_pods_of_an_indexed_job_type_the_line_without_submit():
    given = ("gpus_per_node=2", "cpus_per_task=8", "mem_gb=64")
    job = yaml.safe_load(printed("k8s", *given, words=(*LINE, "--submit-workers=4")))

    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    assert (container["image"], container["command"]) == ("me/vit:1", WORKER)
    assert container["resources"] == {
        "requests": {"cpu": 8, "memory": "64Gi"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": 2},
    }
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/runs"}]
    assert pod["volumes"] == [{"name": "runs", "persistentVolumeClaim": {"claimName": "shared"}}]
    assert job["metadata"]["name"] == "vit-my-photos"  # a name of DNS


def test_a_pod_that_stopped_and_saved_starts_again_and_one_with_a_mistake_does_not():
    job = yaml.safe_load(printed("k8s"))["spec"]

    # As Kubernetes reads the rules: the first that matches counts, without one the failure counts.
    def action(code: int) -> str:
        rules = [rule for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
        return next((rule["action"] for rule in rules if code in rule["onExitCodes"]["values"]), "Count")

    actions = {code: action(code) for code in (1, 2, 3, 4, 5, 6, 7, 8, 137, 143)}
    assert {code for code, what in actions.items() if what == "Ignore"} == {143}
    assert {code for code, what in actions.items() if what == "FailIndex"} == {2, 3, 4, 6, 8}
    assert job["backoffLimitPerIndex"] > 0 and job["template"]["spec"]["restartPolicy"] == "Never"


def test_kubernetes_knows_every_field_of_the_job():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    job = yaml.safe_load(printed("k8s", "gpus_per_node=1", "mem_gb=8"))

    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def test_a_task_of_skypilot_recovers_after_it_stopped_and_saved():
    given = ("accelerators=H100:2", "cpus_per_task=8", "mem_gb=64")
    task = yaml.safe_load(printed("sky", *given))

    assert task == {
        "name": "vit-my-photos",
        "resources": {
            "accelerators": "H100:2",
            "cpus": "8+",
            "memory": "64+",
            "image_id": "docker:me/vit:1",
            "job_recovery": {"max_restarts_on_errors": 3, "recover_on_exit_codes": [143]},
        },
        "volumes": {"/runs": "shared"},
        "run": shlex.join(WORKER),
    }


def test_skypilot_knows_every_field_of_the_task():
    schemas = pytest.importorskip("sky.utils.schemas")
    jsonschema = pytest.importorskip("jsonschema")
    task = yaml.safe_load(printed("sky", "accelerators=H100:2", "cpus_per_task=8", "mem_gb=64"))

    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())


@pytest.mark.slow
def test_the_client_of_hugging_face_resolves_the_job_as_it_was_meant(tmp_path):
    client = shutil.which("hf", path=str(Path(sys.executable).parent))
    if not client or "--dry-run" not in subprocess.check_output([client, "jobs", "run", "--help"], text=True):
        pytest.skip("this huggingface-hub cannot resolve a job without the network")
    script = printed("hf", "flavor=a100-large", "timeout_min=600", words=(*LINE, "--quiet", "--seed", "1"))

    script = script.replace("hf jobs run", f"{shlex.quote(client)} jobs run --dry-run").splitlines()
    done = subprocess.run(["sh", "-c", "\n".join(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    resolved = dict(line.split(None, 1) for line in done.stdout.splitlines() if line.startswith("  "))
    assert resolved["image"] == "me/vit:1" and resolved["volumes"] == "shared:/runs"
    assert (resolved["flavor"], resolved["timeout"]) == ("a100-large", "600m")
    assert shlex.split(resolved["command"]) == [*WORKER, "--quiet", "--seed", "1"]


def test_a_job_of_hugging_face_keeps_the_options_of_vit_apart_from_its_own():
    script = printed("hf", "flavor=t4-small", words=(*LINE, "--quiet"))

    line = shlex.split(script.split("\n", 2)[2].replace("\\\n", " "))
    assert line[:4] == ["hf", "jobs", "run", "--detach"] and "t4-small" in line
    assert line[line.index("--") + 1 :] == ["me/vit:1", *WORKER, "--quiet"]


@pytest.mark.parametrize(
    "words",
    [
        ("pretrain", "--lr", "0.1,0.2", "--dataset", "/runs/data/photos"),
        ("study", "data-size", "demo"),
        ("study", "compute", "demo"),
        ("reproduce", "table5/b16-in21k/cifar10"),
        ("finetune", "--dataset", "vtab", "--ckpt", "/runs/weights.npz"),
    ],
    ids=" ".join,
)
def test_every_command_of_many_runs_prints_and_looks_up_no_name_here(words):
    task = yaml.safe_load(printed("sky", words=(*words, "--out", "/runs/x")))

    assert task["run"] == shlex.join(["vit", *words, "--out", "/runs/x"])


def test_json_holds_the_file():
    result = submitted("sky", words=(*LINE, "--json")).json

    assert (result["command"], result["place"]) == ("submit", "print:sky")
    assert yaml.safe_load(result["file"])["run"] == shlex.join([*WORKER, "--json"])
