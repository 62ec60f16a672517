"""Teachers: what a student learns of them, and that storing it changes no bit."""

import json
import math
import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import Outcome, run, vit
from tests.training.test_finetune import SMALL, fingerprint, small_run, stopped_in_part
from vitcli.cache import user_cache
from vitcli.data import loader
from vitcli.data.dataset import DataSet
from vitcli.data.image_files import find_images
from vitcli.data.split import Grouping, Split
from vitcli.data.transforms import to_model_range
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation.inference import EvalSettings
from vitcli.output.progress import Progress
from vitcli.training import loop, teacher
from vitcli.training.methods import distillation
from vitcli.training.methods.distillation import TOP, record_of, targets_of, unpacked
from vitcli.training.methods.outputs import sample
from vitcli.training.objective import Mixing, softmax_xent, teacher_xent
from vitcli.training.teacher import NetworkTeacher, OnnxTeacher
from vitcli.weights.io import read_weights
from vitcli.weights.load import load
from vitcli.weights.production.program import ProgramNetwork

RNG = np.random.default_rng(0)
# Two parts a step, epochs that end inside one, mixing of both kinds.
TAUGHT = (
    *("--batch-size", 10, "--per-device-batch", 5, "--precision", "fp32"),
    *("--set", "data.train_crop=inception", "--set", "data.crop_area=[0.5,1]", "--set", "train.save_every=2"),
    *("--set", "data.crop_aspect=[0.8,1.25]", "--set", "data.resize=none", "--set", "train.log_every=1"),
    *("--set", "objective.mixup=0.5", "--set", "objective.cutmix=1.0", "--set", "distill.compare=false"),
)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return user_cache.cache_folder("teachers")


def taught(photos: Path, teacher: Path, out: Path, *more: object) -> dict[str, str]:
    """Train on what a teacher says; return the hashes of all that the run made."""
    more = ("--set", f"distill.teacher={teacher}", "--set", "model.dropout=0.1", *more)
    small_run(photos, out, *TAUGHT, *more, steps=5)
    return fingerprint(out)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_the_loss_is_the_divergence_from_the_teacher_times_the_square_of_the_temperature(temperature):
    teacher, student = RNG.normal(0, 3, (2, 6, 5))
    log_p, log_q = (log_softmax(logits / temperature) for logits in (teacher, student))
    targets = unpacked(targets_of([torch.from_numpy(teacher)], temperature=temperature))

    loss = teacher_xent(torch.from_numpy(student), targets, temperature=temperature)

    expected = temperature**2 * (np.exp(log_p) * (log_p - log_q)).sum(axis=1).mean()
    assert float(loss) == pytest.approx(expected, abs=2e-3)  # of 16 bits
    assert float(teacher_xent(torch.from_numpy(teacher), targets, temperature=temperature)) < 1e-4


def test_of_many_classes_those_beyond_the_first_count_as_one():
    teacher, student = RNG.normal(0, 3, (2, 4, 1_000))
    log_p, log_q = log_softmax(teacher), log_softmax(student)
    records = targets_of([torch.from_numpy(teacher)], temperature=1.0)

    loss = teacher_xent(torch.from_numpy(student), unpacked(records), temperature=1.0)

    assert record_of(1_000).itemsize == 4 * (TOP + 1)
    expected = 0.0
    for p, q, record in zip(np.exp(log_p), np.exp(log_q), records, strict=True):
        first = np.argsort(-p)[:TOP]
        assert set(first) == set(record["classes"][:TOP].tolist())
        sums = [(p[first[k]], q[first[k]]) for k in range(TOP)]
        sums.append((1 - p[first].sum(), 1 - q[first].sum()))
        expected += sum(a * math.log(a / b) for a, b in sums) / len(records)
    assert float(loss) == pytest.approx(expected, rel=2e-3)


def test_of_several_teachers_the_mean_of_the_probabilities_is_learned():
    one, other = (torch.from_numpy(RNG.normal(0, 2, (3, 4))) for _ in range(2))

    targets = unpacked(targets_of([one, other], temperature=1.0))

    mean = (one.softmax(dim=1) + other.softmax(dim=1)) / 2
    assert targets[..., 0].tolist() == [[0, 1, 2, 3]] * 3
    assert torch.allclose(targets[..., 1].exp().double(), mean, atol=1e-3)


def test_a_probability_of_nothing_is_a_finite_target():
    logits = torch.tensor([[0.0, -1e9, 5.0]])

    targets = unpacked(targets_of([logits], temperature=1.0))

    assert targets.isfinite().all() and float(targets[0, 2, 1].exp()) == pytest.approx(0.9933, abs=1e-3)
    assert torch.isfinite(teacher_xent(torch.zeros(1, 3), targets, temperature=1.0))


def test_a_box_that_is_cut_is_at_the_same_place_at_another_size():
    small, large = torch.rand(2, 3, 8, 12), torch.rand(2, 3, 16, 24)
    mixing = Mixing(0.5, (2 / 8, 5 / 8, 0.0, 3 / 12))

    for images, scale in ((small, 1), (large, 2)):
        mixed = mixing.mix(images)
        is_cut = (mixed == images.roll(1, 0)).all(dim=(0, 1))
        expected = torch.zeros(is_cut.shape, dtype=torch.bool)
        expected[2 * scale : 5 * scale, : 3 * scale] = True
        assert torch.equal(is_cut, expected)


def test_what_is_stored_of_a_teacher_changes_no_bit(photos, plain_run, cache, tmp_path, monkeypatch):
    asked = []
    logits = NetworkTeacher.logits
    monkeypatch.setattr(
        NetworkTeacher, "logits", lambda self, *given: asked.append(len(given[0])) or logits(self, *given)
    )

    online = taught(photos, plain_run, tmp_path / "online", "--set", "data.cache=off")
    assert sum(asked) == 50 and not cache.exists()
    first = taught(photos, plain_run, tmp_path / "first")
    assert sum(asked) == 100
    # Another rate asks nobody; a store with damage in it the part that holds the damage.
    taught(photos, plain_run, tmp_path / "rate", "--lr", 0.01)
    again = taught(photos, plain_run, tmp_path / "again")
    assert sum(asked) == 100
    (rows,) = cache.glob("*/rows-*")
    content = bytearray(rows.read_bytes()[:64])
    content[1] ^= 1
    with rows.open("r+b") as file:
        file.write(content)
    damaged = taught(photos, plain_run, tmp_path / "damaged")
    assert sum(asked) == 105

    assert online == first == again == damaged
    assert online != taught(photos, plain_run, tmp_path / "seed", "--seed", 1) and sum(asked) == 155


def test_the_teacher_sees_the_views_of_the_student(photos, plain_run, cache, tmp_path, monkeypatch):
    """A student that is the teacher has nothing to learn: its loss is 0 but for the rounding to 16 bits."""
    words = ("finetune", "--recipe", "finetune/default", "--ckpt", plain_run, "--keep-head", "--quiet")
    words += ("--json", "--lr", 1e-9)

    def losses_of(name: str) -> list[float]:
        given = (*TAUGHT, "--set", f"distill.teacher={plain_run}", "--set", "distill.weight=1", "--steps", 3)
        outcome = run(*words, "--dataset", photos, "--out", tmp_path / name, *given)
        assert outcome.code == 0, outcome.err + outcome.out
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return [record["loss"] for record in map(json.loads, lines) if "loss" in record]

    assert max(losses_of("same")) < 1e-4
    monkeypatch.setattr(distillation, "seed_of_part", lambda seed, step, part: seed + 1)  # mixed otherwise
    monkeypatch.setattr(distillation, "REVISION", 2)
    assert max(losses_of("other")) > 1e-3


@pytest.mark.parametrize("moved", [(), ("--set", "data.trivialaugment=true")], ids=["", "moved"])
def test_a_teacher_of_another_size_sees_the_same_crops_in_the_same_mixture(
    moved, photos, plain_run, cache, tmp_path, monkeypatch
):
    seen, trained = [], []
    logits, of_batch = NetworkTeacher.logits, distillation.TeacherTargets.__call__

    def watched(self, batch, step, part):
        trained.append(batch.images_BCHW)
        return of_batch(self, batch, step, part)

    monkeypatch.setattr(
        NetworkTeacher, "logits", lambda self, *given: seen.append(given[0]) or logits(self, *given)
    )
    monkeypatch.setattr(distillation.TeacherTargets, "__call__", watched)
    with_others = taught(photos, plain_run, tmp_path / "run", "--res", 24, *moved)

    assert with_others and {images.shape[-1] for images in seen} == {16}
    for teachers, students in zip(seen, trained, strict=True):
        small = torch.nn.functional.interpolate(students.float(), (16, 16), mode="bilinear", antialias=True)
        both = small, teachers.float()
        rows = [(images - images.mean(dim=(2, 3), keepdim=True)).flatten(1) for images in both]
        similar = torch.corrcoef(torch.cat(rows))[: len(small), len(small) :].nan_to_num()  # black: moved out
        assert similar.diagonal().median() > 0.8 and (similar - similar.diag().diag()).max() < 0.7
    words = ("--set", f"distill.teacher={plain_run}", "--set", "distill.compare=false", *moved)
    for side in (24, 32):
        crop = ("--res", side, "--set", "data.train_crop=inception")
        small_run(photos, tmp_path / f"{side}", *words, *crop, steps=1)
    assert len(list(cache.glob("*/rows-*"))) == (3 if moved else 2)  # moved by as many pixels of another size


def test_the_time_of_a_teacher_does_not_count_as_data_wait(photos, plain_run, cache, tmp_path, monkeypatch):
    clock_s, logits = [0.0], NetworkTeacher.logits

    def slow(self, *given):
        clock_s[0] += 1.0
        return logits(self, *given)

    monkeypatch.setattr(NetworkTeacher, "logits", slow)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock_s[0]))
    taught(photos, plain_run, tmp_path / "run")

    lines = (tmp_path / "run" / "timing.jsonl").read_text().splitlines()
    times = [(row["step_s"], row["data_wait_s"]) for row in map(json.loads, lines) if "step_s" in row]
    assert times == [(2.0, 0.0)] * 5


@pytest.fixture
def settings() -> EvalSettings:
    runtime = start_runtime("fp32")
    return EvalSettings(
        runtime, batch_size=4, on_bad_image="error", num_threads=1, progress=Progress(quiet=True)
    )


def views_of(split: Split, count: int) -> torch.Tensor:
    rows = [loader.read_example(split, row)[0][:16, :16] for row in range(0, 2 * count, 2)]
    return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2)


def test_a_teacher_answers_in_the_order_of_the_classes_of_the_data(photos, plain_run, settings):
    train = DataSet(str(photos)).open("train")
    turned = train.relabelled(np.array([1, 0]), train.class_names[::-1])
    views = views_of(train, 3)

    one, other = (
        NetworkTeacher(str(plain_run), split, settings).logits(views, None) for split in (train, turned)
    )

    assert torch.equal(one, other[:, [1, 0]]) and not torch.equal(one, other)


def test_a_teacher_for_other_classes_has_the_closed_form_as_its_head(photos, settings):
    train = DataSet(str(photos)).open("train")
    teacher = NetworkTeacher("demo", train, settings)
    rows = [loader.read_example(train, row) for row in range(len(train))]
    views = torch.from_numpy(np.stack([resized(image) for image, _ in rows])).permute(0, 3, 1, 2)

    logits = teacher.logits(views, None)

    labels = torch.tensor([label for _, label in rows])
    assert logits.shape == (24, 2) and (logits.argmax(dim=1) == labels).float().mean() > 0.9
    assert "closed form" in teacher.notes[0]


def resized(image_HWC: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(image_HWC).resize((64, 64)))


def test_an_onnx_file_teaches_as_its_network_does(photos, plain_run, settings, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    file = tmp_path / "teacher.onnx"
    assert run("export", plain_run, file, "--input", "pixels", "-q").code == 0
    train = DataSet(str(photos)).open("train")
    turned = train.relabelled(np.array([1, 0]), train.class_names[::-1])
    views, network = views_of(train, 3), NetworkTeacher(str(plain_run), train, settings)

    assert OnnxTeacher(str(file), train).image_size == (16, 16)
    one, other = (OnnxTeacher(str(file), split).logits(views, None) for split in (train, turned))

    assert torch.allclose(one, network.logits(views, None), atol=1e-4) and torch.equal(one, other[:, [1, 0]])
    mixing = Mixing(0.7)  # of bytes
    mixed = OnnxTeacher(str(file), train).logits(views, mixing)
    assert torch.allclose(mixed, network.logits(views, mixing), atol=2e-2) and not torch.allclose(mixed, one)
    renamed = replace(train, class_names=("blue", "green"))
    with pytest.raises(WeightsError, match="does not predict the classes"):
        OnnxTeacher(str(file), renamed)
    opened = ProgramNetwork(file)
    opened.takes_any_size = True
    monkeypatch.setattr(teacher, "ProgramNetwork", lambda path: opened)
    with pytest.raises(WeightsError, match="crops what it is given"):
        OnnxTeacher(str(file), train)
    monkeypatch.undo()
    (tmp_path / "text.onnx").write_text("no network")
    with pytest.raises(VitError):
        OnnxTeacher(str(tmp_path / "text.onnx"), train)


def test_a_runtime_of_another_distribution_teaches_too(photos, plain_run, tmp_path, monkeypatch):
    """As onnxruntime-gpu, which has the module and no metadata under its name."""
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "teacher.onnx"
    assert run("export", plain_run, file, "--input", "pixels", "-q").code == 0
    distribution = metadata.distribution

    def of_another_name(name: str) -> metadata.Distribution:
        if name == "onnxruntime":
            raise metadata.PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(metadata, "distribution", of_another_name)
    teacher = OnnxTeacher(str(file), DataSet(str(photos)).open("train"))
    assert teacher.digest.endswith(f", onnxruntime {onnxruntime.__version__}")


def test_views_are_mixed_with_each_other_alone(photos, plain_run, settings):
    """Five images are padded to eight for the forward pass; none of these is a neighbour."""
    train = DataSet(str(photos)).open("train")
    teacher, views, mixing = NetworkTeacher(str(plain_run), train, settings), views_of(train, 5), Mixing(0.7)

    logits = teacher.logits(views, mixing)

    pixels = to_model_range(views, mean=(0.5,) * 3, std=(0.5,) * 3)
    weights = read_weights(str(plain_run), quiet=True)
    network = load(weights)[0].eval()
    with torch.no_grad():
        expected = network(mixing.mix(pixels))
    assert torch.allclose(logits, expected, atol=1e-5)


@pytest.mark.slow
def test_two_processes_learn_what_one_does_with_and_without_a_store(photos, plain_run, cache, tmp_path):
    words = (*SMALL, *TAUGHT, "--exact", "--dataset", photos, "--steps", 5)
    words += ("--set", f"distill.teacher={plain_run}", "--set", "model.dropout=0.1")
    made = []
    for number, (processes, kept) in enumerate(
        [(1, "off"), (2, "off"), (2, "auto"), (1, "auto"), (2, "auto")]
    ):
        out = tmp_path / str(number)
        ended = vit(*words, "--out", out, "--num-processes", processes, "--set", f"data.cache={kept}")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        made.append(fingerprint(out))

    assert all(each == made[0] for each in made)


def test_images_without_labels_join_unless_they_are_held_out(photos, plain_run, cache, tmp_path):
    folder = tmp_path / "more"
    folder.mkdir()
    for number in range(6):
        Image.fromarray(np.full((40, 48, 3), 40 * number, np.uint8)).save(folder / f"{number}.png")
    data = shutil.copytree(photos, tmp_path / "data")
    for label, other in (("red", "green"), ("green", "red")):
        (data / "validation" / label).mkdir(parents=True)
        shutil.copy(data / "test" / other / "01.png", data / "validation" / label)
    shutil.copy(data / "test/red/00.png", folder / "copy.png")  # of an image to report on
    shutil.move(data / "test/red/01.png", folder / "calibrates.png")  # now among those to calibrate by alone
    more = ("--set", f"distill.teacher={plain_run}", "--set", f"distill.images={folder}")
    summary = small_run(data, tmp_path / "run", *TAUGHT, *more, "--set", "distill.weight=0.5", steps=4)

    assert summary["num_train_examples"] == 24 + 6
    assert "2 images of distill.images are held out" in str(summary["notes"])


def test_images_without_labels_stand_behind_the_others_and_have_no_loss_of_labels(photos):
    train, others = DataSet(str(photos)).open("train"), find_images([str(photos / "test/*/*.png")], where="")
    both = train.with_unlabelled(others)

    assert both.read_labels().tolist() == [*train.read_labels().tolist(), *[-1] * 10]
    for row, (split, place) in {3: (train, 3), 23: (train, 23), 24: (others, 0), 33: (others, 9)}.items():
        image, label = both.reader_of([row, 0, 25])(row)
        assert image == split.read_row(place)[0] and both.where_is(row) == split.where_is(place)
        assert label == (-1 if split is others else train.read_labels()[place])
    logits, labels = torch.randn(4, 2), torch.tensor([0, -1, 1, -1])
    of_some = softmax_xent(logits, labels, class_weights=(1.0, 1.0))
    assert of_some == pytest.approx(float(softmax_xent(logits[[0, 2]], labels[[0, 2]])) / 2)


def test_heads_in_closed_form_are_fitted_to_images_with_labels_however_many_have_none(photos):
    train, others = DataSet(str(photos)).open("train"), find_images([str(photos / "*/*/*.png")], where="")
    train = replace(train, grouping=Grouping("pairs", lambda: np.arange(24) // 2))
    both = train.with_unlabelled(others)

    assert sample(both, 20).read_labels().tolist() == sample(train, 20).read_labels().tolist()
    assert sample(both, 1_000).read_labels().tolist() == train.read_labels().tolist()
    assert sample(both, 1_000).groups_N.tolist() == train.groups_N.tolist()
    assert len(set(both.groups_N[24:])) == len(others) and not set(both.groups_N[24:]) & set(train.groups_N)


def test_a_run_does_not_resume_with_another_teacher(photos, plain_run, cache, tmp_path):
    teacher = shutil.copytree(plain_run, tmp_path / "teacher")
    words = (*SMALL, *TAUGHT, "--dataset", photos, "--out", tmp_path / "run", "--steps", 6)
    words += ("--set", f"distill.teacher={teacher}")
    with stopped_in_part(4):
        assert run(*words).code == 143
    other = small_run(photos, tmp_path / "other", steps=1)
    shutil.copy(Path(other["weights"]), teacher / "model.safetensors")
    refused = run(*words)

    assert refused.code == 4 and "no longer those" in refused.json["error"]["message"], refused.out
    assert run(*words, "--overwrite").code == 0


def refusal(photos: Path, *words: object) -> dict:
    outcome: Outcome = run(*SMALL, "--dataset", photos, "--steps", 2, *words, "--dry-run")
    assert outcome.code != 0, outcome.out
    return outcome.json["error"] | {"code": outcome.code}


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (("distill.weight=0.5",), 2, "no teacher is named"),
        (("distill.teacher=nowhere.onnx",), 2, "there is no file nowhere.onnx"),
        (("distill.teacher=nowhere",), 4, "no file, folder or known weights called 'nowhere'"),
        (("distill.teacher=demo", "objective.loss=sigmoid"), 2, "one class per image"),
        (("distill.teacher=demo", "distill.temperature=0"), 2, "out of its range"),
        (("distill.teacher=demo", "distill.weight=1.5"), 2, "out of its range"),
        (("distill.teacher=[]",), 2, "distill.teacher"),
        (("distill.teacher=demo", "distill.images=nowhere/*.png"), 3, "no image found"),
        (("distill.teacher=demo", "train.runs=2"), 2, "makes two runs"),
        (("distill.teacher=demo", "data.dev_fraction=0"), 2, "data.dev_fraction is 0"),
        (
            ("distill.teacher=demo", "data.random_erasing=0.5"),
            2,
            "data.random_erasing depends on the image size",
        ),
        (("distill.teacher=demo", "train.batch_size=[4,8]"), 2, "lists values to choose from"),
    ],
    ids=str,
)
def test_what_cannot_be_learned_is_refused_before_anything_is_written(photos, words, code, what):
    error = refusal(photos, *(word for key in words for word in ("--set", key)))

    assert error["code"] == code and what in error["message"], error
