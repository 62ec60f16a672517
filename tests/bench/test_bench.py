"""`vit bench`: what its numbers mean, that both sides do the same work, and that nothing is left behind."""

import time
from dataclasses import replace
from itertools import count, islice
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import run
from vitcli.bench import data, figures, infer, limits, measure, setup, text
from vitcli.data.dataset import DataSet
from vitcli.data.loader import Batch
from vitcli.errors import VitError
from vitcli.models.build import architecture
from vitcli.models.flops import num_params

CPU = torch.device("cpu")
TINY = ["--repeats", 2, "--steps", 2, "--batch-size", 8]
SPEED = {"images", "images_per_s", "images_per_s_range", "cpu_s_per_image", "data_wait_fraction"}
MEMORY = {"host_peak_memory_gib", "device_peak_memory_gib"}
ABOUT = {"command", "dataset", "machine", "repeats"}


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch):
    monkeypatch.setattr(limits, "MEASURED_S", 0.05)


def ti16():
    return architecture("ViT-Ti/16", image_size=(224, 224), num_classes=1000)


def batches(size: int, *, sleep_s: float = 0.0):
    for _ in count():
        time.sleep(sleep_s)
        yield Batch(torch.empty(size, 0), torch.zeros(size), torch.arange(size), ())


def check_speed(rates: dict, *, images: int) -> None:
    assert rates.keys() >= SPEED
    low, high = rates["images_per_s_range"]
    assert 0 < low <= rates["images_per_s"] <= high
    assert rates["images"] == images
    assert 0 <= rates["data_wait_fraction"] < 1 and rates["cpu_s_per_image"] > 0


def test_the_operations_of_a_step_are_those_counted_by_hand():
    # T = 197, D = 192, M = 768: patches 3 x 16^2 x 196 D, and 12 layers of T (4 D^2 + 2 D M) + 2 T^2 D
    forward_macs = 28_901_376 + 12 * (87_146_496 + 14_902_656)

    assert limits.inference_flops(ti16()) == 2 * forward_macs
    assert limits.training_flops(ti16()) == 6 * forward_macs == 7_520_947_200


def test_the_limit_is_measured_at_the_matrix_products_of_the_network():
    rows = 4 * 197
    widths = {(192, 576): 12, (192, 192): 12, (192, 768): 12, (768, 192): 12}

    assert limits.linear_shapes(ti16(), 4, "cpu") == {(rows, *pair): times for pair, times in widths.items()}
    bit = architecture("resnetv2_50x1_bit", image_size=(32, 32), num_classes=10)
    assert limits.linear_shapes(bit, 4, "cpu") == {limits.SQUARE["cpu"]: 1}


def test_the_rate_of_matrix_products_is_their_operations_by_their_time(monkeypatch):
    clock = count()
    monkeypatch.setattr(limits.time, "perf_counter", lambda: next(clock) / 4)
    monkeypatch.setattr(limits, "MEASURED_S", 2)

    assert limits.matmul_flops_per_s({(3, 5, 7): 12}, CPU, "fp32") == 2 * 3 * 5 * 7 / 0.25


def test_the_limit_is_that_of_the_fastest_round_after_the_first(monkeypatch):
    first, slow, fast = (0.0, 0.5), (10.0, 14.0), (15.0, 16.0)
    times = iter([*first, *slow, 14.0, 14.5, *fast, 17.0])  # it measures until 16
    monkeypatch.setattr(limits.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(limits, "MEASURED_S", 2)

    assert limits.matmul_flops_per_s({(3, 5, 7): 12}, CPU, "fp32") == 2 * 3 * 5 * 7 / 1.0


def test_the_limit_of_a_gpu_is_what_it_keeps_up_for_the_time_of_a_lap(monkeypatch):
    """Its fastest round is a sprint: it is cool, and the limit of power comes later."""
    monkeypatch.setattr(limits, "synchronize", lambda device: None)
    monkeypatch.setattr(limits, "LAP_S", 4)
    first, sprint, second, third, fourth = (0.0, 0.5), (1.0, 1.25), (2.0, 3.0), (4.0, 5.0), (5.5, 7.5)
    times = iter([*first, *sprint, 1.5, 1.5, *second, 3.0, *third, 5.0, *fourth, 7.5])  # until 5.5
    monkeypatch.setattr(limits.time, "perf_counter", lambda: next(times))

    rate = limits.matmul_flops_per_s({(3, 5, 7): 12}, torch.device("meta"), "bf16")
    assert rate == 2 * 3 * 5 * 7 / 1.0


def test_a_second_epoch_begins_when_every_image_was_read_once():
    read = []

    def batches_of(rows):
        for step in count():
            read.extend(row % len(rows) for row in range(4 * step, 4 * step + 4))
            yield step

    rows = DataSet("demo").open("test").part(0, 10, name="ten")
    assert next(data._second_epoch(rows, batches_of, 4, None)) >= 3
    assert set(read) == set(range(10))


def test_a_lap_counts_its_images_and_the_time_without_any():
    waits = measure.Waits(batches(3, sleep_s=0.02))
    lap = measure.Stream(
        waits, CPU, images_of=lambda b: len(b.rows_B), settle=2, per_lap=4, waits=waits
    ).lap()

    assert lap.images == 12
    assert 0.08 <= lap.waited_s <= lap.wall_s


def test_a_loop_is_timed_by_its_batches_and_stands_still_while_the_others_have_their_turn():
    laps = []
    timed = measure.TimedBatches(
        islice(batches(5), 13),
        CPU,
        settle=2,
        per_lap=4,
        on_lap=lambda lap: laps.append(lap) or time.sleep(0.05),
    )

    assert len(list(timed)) == 13
    assert [lap.images for lap in laps] == [20, 20]
    assert all(lap.wall_s < 0.05 for lap in laps)


def test_items_that_settle_are_pulled_before_a_lap_and_not_counted():
    items = iter([100, 100, 1, 2, 3, 100, 100, 4, 5, 6])
    stream = measure.Stream(items, torch.device("cpu"), images_of=int, settle=2, per_lap=3)

    assert [stream.lap().images for _ in range(2)] == [6, 15]


@pytest.mark.parametrize(
    ("step_s", "steps"), [(60.0, 2), (0.8, 2), (0.5, 4), (0.3, 7), (0.004, 500), (0.001, 500), (0.0, 500)]
)
def test_a_lap_takes_two_seconds_but_two_steps_at_least_and_500_at_most(step_s, steps):
    assert measure.steps_of_a_lap(step_s) == steps


def test_ratios_are_of_neighbouring_laps():
    def laps(*per_s: float) -> list[measure.Lap]:
        return [measure.Lap(100, 100 / rate, 2 * 100 / rate, 10 / rate) for rate in per_s]

    assert measure.ratio(laps(20, 40, 90), laps(10, 20, 30)) == {"ratio": 2.0, "ratio_range": [2.0, 3.0]}
    on_few_cores = [measure.Lap(100, lap.wall_s, lap.cpu_s / 4) for lap in laps(20, 40, 90)]
    by_cpu = measure.ratio(on_few_cores, laps(10, 20, 30), "cpu_s")
    assert by_cpu == {"ratio": 8.0, "ratio_range": [8.0, 12.0]}
    rates = measure.rates(laps(20, 40, 90))
    assert (rates["images_per_s"], rates["images_per_s_range"], rates["images"]) == (40, [20, 90], 300)
    assert rates["cpu_s_per_image"] == 0.05 and rates["data_wait_fraction"] == pytest.approx(0.1)


def test_train_measures_the_real_loop_against_the_bare_step_and_timm():
    words = ["--model", "ViT-demo/8", "--res", 16, "--precision", "fp32", "--compare", "timm"]
    result = run("bench", "train", *TINY, *words, "--json").json

    assert result.keys() >= ABOUT | SPEED | MEMORY
    check_speed(result, images=2 * 2 * 8)
    check_speed(result["compare"], images=result["images"])
    arch = architecture("ViT-demo/8", image_size=(16, 16), num_classes=1000)
    fraction = limits.training_flops(arch) * result["images_per_s"] / result["limit_flops_per_s"]
    assert result["fraction_of_limit"] == pytest.approx(fraction)
    assert (result["precision"], result["batch_size"], result["dataset"]) == ("fp32", 8, "synthetic")
    assert result["overhead_fraction"] < 1 and result["device_peak_memory_gib"] is None
    assert "timm's speed" in text.as_text(result) and "outside forward, backward, optimizer" in text.as_text(
        result
    )


@pytest.mark.slow
def test_train_takes_real_recipes_and_waits_for_real_images(photos):
    words = ["--recipe", "pretrain/b16-masked-patch", "--model", "ViT-demo/8", "--res", 16, "--cached"]
    words += ["--dataset", photos]
    result = run("bench", "train", *TINY, *words, "--repeats", 1, "--json").json

    check_speed(result, images=2 * 8)
    assert result["data_wait_fraction"] > 0 and result["optimizer"] == "adam" and result["cached"]


@pytest.mark.parametrize("eval_", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_data_measures_both_epochs_decoding_and_timm(photos, eval_):
    words = ["--dataset", photos, "--res", 16, "--workers", 1, "--compare", "timm", "--json"]
    words += ["--eval"] if eval_ else []
    result = run("bench", "data", *TINY, *words).json

    images = 2 * 2 * 8 if not eval_ else result["images"]  # the last batch of a pass over the split is short
    check_speed(result, images=images)
    if not eval_:
        for side in (result["second_epoch"], result["decode"], result["compare"]):
            check_speed(side, images=images)
    assert result["compare"].keys() >= {"ratio", "ratio_range", "cpu_ratio", "cpu_ratio_range", "differences"}
    assert result["pixels"] == ("evaluate" if eval_ else "train")
    assert "images per CPU-second" in text.as_text(result)


@pytest.mark.slow
def test_infer_draws_figure_12_and_takes_a_full_memory_for_an_answer(tmp_path, monkeypatch):
    def outputs_of(model, batches, *args):
        if model.patch_embed.img_size == (32, 32):
            raise torch.OutOfMemoryError("out of memory")
        return outputs(model, batches, *args)

    outputs = infer.inference.outputs_of
    monkeypatch.setattr(infer.inference, "outputs_of", outputs_of)
    words = ["bench", "infer", "--models", "ViT-demo/8", "--res", "16,32", *TINY, "--compare", "timm"]
    shown = run(*words, "--out", tmp_path / "fig12", "--json")
    result = shown.json

    assert [row["resolution"] for row in result["rows"]] == [16, 32]
    measured, failed = result["rows"]
    check_speed(measured, images=2 * 2 * 8)
    check_speed(measured["compare"], images=measured["images"])
    of_limit = measured["flops_per_image"] * measured["images_per_s"] / measured["limit_flops_per_s"]
    assert measured["fraction_of_limit"] == pytest.approx(of_limit)
    assert failed["out_of_memory"] and "out of memory" in text.as_text(result)
    names = sorted(path.name for path in (tmp_path / "fig12").iterdir() if not path.name.startswith("."))
    assert names == ["benchmark.json", "inference.png", "inference.svg"]
    # The same request is measured again; another needs --overwrite.
    other = run(*words[:3], "ViT-demo/8", "--res", "16", *TINY, "--out", tmp_path / "fig12")
    assert other.code == 2 and "--overwrite" in other.err


def test_the_figure_has_a_line_per_network_and_no_point_that_ran_out_of_memory():
    rows = [
        {"model": model, "resolution": side, "images_per_s": per_s, "largest_batch": 10}
        for model, side, per_s in [("a", 64, 100.0), ("a", 128, 25.0), ("b", 64, 50.0), ("b", 128, None)]
    ]
    speed, largest = figures.by_resolution(rows, device="H200").axes

    assert [list(line.get_xdata()) for line in speed.lines] == [[64, 128], [64]]
    assert [list(line.get_ydata()) for line in speed.lines] == [[100.0, 25.0], [50.0]]
    assert [list(line.get_ydata()) for line in largest.lines] == [[10, 10], [10, 10]]
    assert figures.by_resolution(rows[::2], device="H200") is None  # one resolution is no curve


@pytest.mark.parametrize(("fitting", "largest"), [(0, 0), (1, 1), (5, 5), (100, 96), (130, 128)])
def test_the_largest_batch_is_found_to_an_eighth_of_a_power_of_two(fitting, largest, monkeypatch):
    tried = []

    def forward(case, runtime, size):
        tried.append(size)
        if size > fitting:
            raise torch.OutOfMemoryError("as a GPU says it")

    monkeypatch.setattr(infer, "_forward", forward)

    assert infer._largest_batch(None, None) == largest
    assert len(tried) < 30


def test_timm_has_no_network_with_our_own_parts():
    from vitcli.bench import timm_peer  # timm's optimizers take a second to import

    arch = architecture("ViT-demo/8", image_size=(16, 16), num_classes=2)
    count = sum(parameter.numel() for parameter in timm_peer.network(arch).parameters())

    assert count == num_params(arch)
    for part in ({"pre_logits": True}, {"posemb": "2d"}):
        with pytest.raises(VitError, match="timm has no ViT-demo/8 with these parts"):
            timm_peer.network(replace(arch, **part))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("infer --res 224x", "'224x' is not a side"),
        ("infer --res 0", "'0' is not a side"),
        ("infer --models Ti/16,S/16 --ckpt demo", "a checkpoint is of one network"),
        ("infer --models ViT-X/99", "there is no model 'ViT-X/99'"),
        ("infer --overwrite", "no folder is named"),
        ("infer --res 100", "does not divide into patches"),
        ("infer --largest-batch --device cpu", "this is a CPU"),
        ("train --compare jax", "'jax'"),
        ("train --steps 0", "must be greater than or equal to 1"),
        ("train --dataset nowhere/here/at/all", "nowhere/here/at/all"),
        ("train --per-device-batch many", "'many' is neither a number"),
        ("data --dataset ", "empty"),
        ("data --split nothing", "has no split 'nothing'"),
    ],
)
def test_mistakes_are_refused_in_three_lines(words, message):
    shown = run("bench", *words.split(" "))

    assert shown.code in (2, 3) and message in shown.err and "Traceback" not in shown.err


def test_the_sides_take_turns_lap_by_lap():
    bench, order = setup.Benchmark(None, setup.BenchOptions(repeats=3)), []
    bench.take_turns({"ours": lambda: order.append("a"), "timm": lambda: order.append("b")})

    assert order == ["a", "b"] * 3
    assert {side: len(laps) for side, laps in bench.laps.items()} == {"ours": 3, "timm": 3}


def test_another_side_is_built_after_our_first_lap_and_its_memory_is_not_counted(monkeypatch):
    order, peaks = [], iter([{"host_peak_memory_gib": 1.0}, {"host_peak_memory_gib": 9.0}])
    monkeypatch.setattr(setup, "peak_memory", lambda: next(peaks))
    timm = measure.built_late(lambda: order.append("built") or (lambda: order.append("timm")))
    bench = setup.Benchmark(None, setup.BenchOptions(repeats=2))
    bench.take_turns({"ours": lambda: order.append("ours"), "timm": timm})

    assert order == ["ours", "built", "timm", "ours", "timm"]
    assert bench.peaks == {"host_peak_memory_gib": 1.0}


def test_the_limit_is_the_best_that_was_measured(monkeypatch):
    rates = iter([3.0, 5.0, 4.0])
    monkeypatch.setattr(limits, "matmul_flops_per_s", lambda shapes, device, precision: next(rates))
    bench = setup.Benchmark(SimpleNamespace(device=CPU, precision="fp32"), setup.BenchOptions())

    assert [bench.limit({}) for _ in range(3)] == [3.0, 5.0, 5.0]


def test_comparisons_are_of_ours_against_theirs_by_the_clock_and_by_cpu_time():
    """100 images a lap: per second and per CPU-second of each side."""

    def laps(per_s: float, per_cpu_s: float) -> list[measure.Lap]:
        return [measure.Lap(100, 100 / per_s, 100 / per_cpu_s)] * 3

    sides = {"cold": laps(60, 15), "second_epoch": laps(120, 40), "timm": laps(20, 99), "ours": laps(50, 1)}
    sides["timm_in_process"] = laps(5, 5)

    bench = setup.Benchmark(None, setup.BenchOptions(compare="timm"), sides)

    of_data = data._comparison(bench, is_training=True)
    assert (of_data["ratio"], of_data["images_per_s"]) == (pytest.approx(3), pytest.approx(20))
    assert (of_data["cpu_ratio"], of_data["cpu_ratio_range"]) == (pytest.approx(3), pytest.approx([3, 3]))
    assert of_data["second_epoch_ratio"] == pytest.approx(6)
    assert of_data["second_epoch_cpu_ratio"] == pytest.approx(8)
    assert of_data["cpu_s_per_image"] == pytest.approx(1 / 5)
    bench.laps.pop("second_epoch")
    assert data._comparison(bench, is_training=False)["second_epoch_ratio"] is None
    of_training = bench.peer("train")
    assert (of_training["ratio"], of_training["images_per_s"]) == (pytest.approx(2.5), pytest.approx(20))
    assert setup.Benchmark(None, setup.BenchOptions(), sides).peer("train") is None
