#!/usr/bin/env bash
# Every GPU row of docs/benchmarks.md, with one command:
#
#     benchmarks/gpu.sh [--photos DATA] [--dry-run]
#
# Training steps of S/16, B/16 and L/16 in bf16 on synthetic images, B/16 from real JPEGs (--photos, a data set that
# vit reads; cold and decoded before) and inference of L/16, each by `vit bench`, and a table of fractions with what
# docs/benchmarks.md asks for. Without a GPU, or with --dry-run, it prints the commands and ends with code 0. VIT and
# PYTHON name other commands, STEPS and REPEATS shorter laps. About ten minutes.
set -u
cd "$(dirname "$0")/.." || exit 1
photos=""
. benchmarks/gpu_options.sh
VIT=${VIT:-$PYTHON -m vitcli}
laps="--repeats ${REPEATS:-3} --json --quiet"
[ -n "${STEPS:-}" ] && laps="$laps --steps $STEPS"
[ -n "${DEVICE:-}" ] && laps="$laps --device $DEVICE"
results=$(mktemp -d) && trap 'rm -rf "$results"' EXIT

if [ -z "$dry_run" ] && [ -z "${DEVICE:-}" ] && ! $PYTHON -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "no GPU here: these are the commands that would run"
  dry_run=yes
fi

bench() { # name, at least and aim in percent, then the words of vit bench
  local name=$1 least=$2 aim=$3
  shift 3
  if [ -n "$dry_run" ]; then
    echo "$name: vit bench $* $laps"
    return
  fi
  echo "$name ..." >&2
  # shellcheck disable=SC2086
  if $VIT bench "$@" $laps >"$results/$name.json" 2>"$results/$name.err"; then
    echo "$name $least $aim" >>"$results/rows"
  else
    echo "$name failed: $(tail -3 "$results/$name.err" | tr '\n' ' ')" >&2
    echo "$name failed failed" >>"$results/rows"
  fi
}

# Batches as large as keep the GPU busy; compiled, as training on a GPU would be.
bench train-S16 40 50 train --model ViT-S/16 --res 224 --batch-size 1024 --per-device-batch 512 --precision bf16 --compile
bench train-B16 50 60 train --model ViT-B/16 --res 224 --batch-size 512 --per-device-batch 256 --precision bf16 --compile
bench train-L16 55 65 train --model ViT-L/16 --res 224 --batch-size 256 --per-device-batch 128 --precision bf16 --compile
if [ -n "$photos" ]; then
  words="train --model ViT-B/16 --res 224 --batch-size 512 --per-device-batch 256 --precision bf16 --compile --dataset $photos"
  # shellcheck disable=SC2086
  bench jpeg-cold 80 95 $words
  # shellcheck disable=SC2086
  bench jpeg-cached 80 95 $words --cached
else
  echo "no --photos: the rows from real JPEGs are left out" >&2
fi
bench infer-L16-224 60 75 infer --models ViT-L/16 --res 224 --batch-size 256 --precision bf16
bench infer-L16-384 60 75 infer --models ViT-L/16 --res 384 --batch-size 128 --precision bf16
[ -n "$dry_run" ] && exit 0

RESULTS=$results $PYTHON - <<'END'
import json
import os
from pathlib import Path

folder = Path(os.environ["RESULTS"])
results = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json") if path.stat().st_size}
print("| work | images/s (range) | fraction | of | memory, GiB | data wait | at least, aim |")
print("|---|---|---|---|---|---|---|")
for line in (folder / "rows").read_text().splitlines():
    name, least, aim = line.split()
    if least == "failed":
        print(f"| {name} | failed | | | | | |")
        continue
    result = results[name].get("rows", [results[name]])[0]
    if result.get("out_of_memory"):
        print(f"| {name} | out of memory | | | | | |")
        continue
    low, high = result["images_per_s_range"]
    fraction, of = result["fraction_of_limit"], f"{result['limit_flops_per_s'] / 1e12:.3g} TFLOP/s measured"
    if name.startswith("jpeg") and "train-B16" in results:
        fraction, of = result["images_per_s"] / results["train-B16"]["images_per_s"], "the synthetic rate"
    memory = result["device_peak_memory_gib"] or result["host_peak_memory_gib"]
    wait = f"{result['data_wait_fraction']:.1%}"
    speed = f"{result['images_per_s']:,.0f} ({low:,.0f} to {high:,.0f})"
    print(f"| {name} | {speed} | {fraction:.1%} | {of} | {memory:.1f} | {wait} | {least} %, {aim} % |")
machine = next(iter(results.values()), {}).get("machine", {})
print(f"\n{machine.get('device_name')}, {machine.get('cpu_count')} cores, torch {machine.get('torch')}")
END
