"""The results of `vit bench` for a terminal. Loads no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitcli.output.document import simple_table
from vitcli.output.text import count_of, pairs, rate_text, size_text

GIGA, TERA = 1e9, 1e12
Row = tuple[str, str]


def as_text(result: Mapping[str, Any]) -> str:
    """Return the result of any of the three benchmarks."""
    return {"bench data": _data, "bench train": _train, "bench infer": _infer}[result["command"]](result)


def _data(result: Mapping[str, Any]) -> str:
    second, compare = result["second_epoch"], result["compare"]
    later = f"; {1e3 * second['cpu_s_per_image']:.2f} ms later" if second else ""
    by_cpu = []
    if compare:
        cpu = f"{_times(compare['cpu_ratio'], compare['cpu_ratio_range'])} as many images per CPU-second"
        if compare["second_epoch_ratio"]:
            ratios = compare["second_epoch_ratio"], compare["second_epoch_cpu_ratio"]
            cpu += "; in later epochs {:.1f}x by the clock, {:.1f}x by CPU time".format(*ratios)
        by_cpu = [("", cpu)]
    pixels = "augmented for training" if result["pixels"] == "train" else "as in evaluation"
    threads = count_of(result["workers"], "thread")
    rows = [
        ("first epoch", _speed(result)),
        ("later ones", f"{second['images_per_s']:,.0f} images/s, decoded images in memory" if second else ""),
        ("CPU time", f"{1e3 * result['cpu_s_per_image']:.2f} ms per image{later}"),
        ("decoding", f"{result['decode']['images_per_s']:,.0f} images/s alone, with {threads}"),
        ("memory", _memory(result)),
        *_compared(compare, by_cpu),
        ("images", f"{result['split']}, {result['num_examples']:,}"),
        ("pixels", f"{pixels} at {size_text(result['resolution'])} px, batches of {result['batch_size']}"),
        *_machine(result),
    ]
    return pairs((name, value) for name, value in rows if value)


def _train(result: Mapping[str, Any]) -> str:
    part = result["per_device_batch"]
    parts = "" if part == result["batch_size"] else f" in parts of {part}"
    step = f"{1e3 * result['step_s']:,.1f} ms for {result['batch_size']} images{parts}"
    limit = f"{result['fraction_of_limit']:.1%} of {_flops_text(result['limit_flops_per_s'])}"
    rows = [
        ("speed", _speed(result)),
        ("step", f"{step}; {result['overhead_fraction']:.1%} outside forward, backward, optimizer"),
        ("limit", f"{limit}, matrix products alone in {result['precision']}"),
        ("data wait", f"{result['data_wait_fraction']:.1%} of the time"),
        ("CPU time", f"{1e3 * result['cpu_s_per_image']:.2f} ms per image"),
        ("memory", _memory(result)),
        *_compared(result["compare"]),
        ("network", f"{result['model']} at {size_text(result['resolution'])} px, {result['optimizer']}"),
        ("images", result["dataset"]),
        *_machine(result),
    ]
    return pairs(rows)


def _infer(result: Mapping[str, Any]) -> str:
    rows = result["rows"]
    columns = {"network": "text", "px": "number", "batch": "number", "images/s": "number", "range": "number"}
    columns |= {"of limit": "number", "GiB": "number"}
    has_largest = any("largest_batch" in row for row in rows)
    has_peer = any(row["compare"] for row in rows)
    columns |= {"largest batch": "number"} if has_largest else {}
    columns |= {"x timm": "number"} if has_peer else {}
    lines = []
    for row in rows:
        line = [row["model"], size_text(row["resolution"]), str(row["batch_size"])]
        if row["out_of_memory"]:
            line += ["out of memory", "", "", ""]
        else:
            low, high = row["images_per_s_range"]
            line += [rate_text(row["images_per_s"]), f"{rate_text(low)}-{rate_text(high)}"]
            on_device = row["device_peak_memory_gib"]  # which limits the batch, where there is a GPU
            memory = row["host_peak_memory_gib"] if on_device is None else on_device
            line += [f"{row['fraction_of_limit']:.0%}", f"{memory:.2f}"]
        line += [f"{row['largest_batch']:,}"] if has_largest else []
        line += [f"{row['compare']['ratio']:.2f}" if row["compare"] else ""] if has_peer else []
        lines.append(line)
    limits = [row["limit_flops_per_s"] for row in rows if not row["out_of_memory"]]
    foot = []
    if limits:
        low, high = _flops_text(min(limits)), _flops_text(max(limits))
        rates = low if low == high else f"{low} to {high}"
        foot = [("limit", f"matrix products alone: {rates} in {result['precision']}")]
    foot += [("differs", row["compare"]["differences"]) for row in rows[:1] if row["compare"]]
    foot += [("images", result["dataset"]), *_machine(result)]
    foot += [("figure", f"{result['out']}/inference.png")] if result.get("out") else []
    return f"{simple_table(columns, lines).as_text()}\n{pairs(foot)}"


def _speed(result: Mapping[str, Any]) -> str:
    low, high = result["images_per_s_range"]
    laps = f"{count_of(result['repeats'], 'lap')} of {count_of(result['steps'], 'step')}"
    return f"{rate_text(result['images_per_s'])} images/s ({rate_text(low)} to {rate_text(high)} in {laps})"


def _flops_text(rate: float) -> str:
    return f"{rate / TERA:,.1f} TFLOP/s" if rate >= TERA else f"{rate / GIGA:,.0f} GFLOP/s"


def _memory(result: Mapping[str, Any]) -> str:
    on_device = result["device_peak_memory_gib"]
    host = f"{result['host_peak_memory_gib']:.2f} GiB at the peak"
    return host if on_device is None else f"{on_device:.2f} GiB on the GPU, {host} beside it"


def _compared(compare: Mapping[str, Any] | None, more: Sequence[Row] = ()) -> list[Row]:
    """Return the rows of a comparison, `more` of them between the other side's speed and what differs."""
    if not compare:
        return []
    theirs = f"{rate_text(compare['images_per_s'])} images/s by {compare['peer']}"
    speed = f"{_times(compare['ratio'], compare['ratio_range'])} timm's speed: {theirs}"
    return [("against", speed), *more, ("differs", compare["differences"])]


def _times(ratio: float, span: list[float]) -> str:
    return f"{ratio:.2f}x ({span[0]:.2f} to {span[1]:.2f})"


def _machine(result: Mapping[str, Any]) -> list[Row]:
    about = result["machine"]
    cores = count_of(about["cpu_count"], "core")
    return [("machine", f"{about['device_name']}, {cores}; torch {about['torch']}, vit {about['vit']}")]
