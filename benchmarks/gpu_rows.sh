#!/usr/bin/env bash
# Commands of the rows of gpu_stages.sh: its environment is PYTHON, OUT and photos.

vit() { $PYTHON -m vitcli "$@"; }
check() { $PYTHON benchmarks/gpu_checks.py "$@"; }
bench() { # one JSON object more in bench.jsonl; prints its speed
  vit bench "$@" --json --quiet >"$OUT/log/json.$$" || { cat "$OUT/log/json.$$"; return 1; }
  tr -d '\n' <"$OUT/log/json.$$" | sed 's/$/\n/' >>"$OUT/bench.jsonl"
  check speed "$OUT/log/json.$$"
}
demo_run() { # NAME: the demo, 20 steps, every loss logged
  local name=$1
  shift
  vit finetune --dataset demo --ckpt demo --steps 20 --quiet --set train.log_every=1 --overwrite --out "$OUT/runs/$name" "$@"
}
b16() { # pre-training of B/16, whose warm-up would be longer than these runs
  vit pretrain --recipe pretrain/b16-imagenet --dataset "$photos" --res 224 --quiet --set schedule.warmup=10% "$@"
}
doctor_names_the_gpu() { vit doctor --json >"$OUT/doctor.json" && check doctor "$OUT/doctor.json"; }
losses_of_the_cpu() { # PRECISION
  demo_run "cpu-$1" --device cpu --precision fp32 && demo_run "gpu-$1" --precision "$1" && check losses "$OUT/runs/cpu-$1" "$OUT/runs/gpu-$1" 0.02
}
exact_twice() {
  demo_run exact-1 --precision bf16 --exact && demo_run exact-2 --precision bf16 --exact &&
    sha256sum "$OUT"/runs/exact-[12]/model.safetensors && cmp "$OUT/runs/exact-1/model.safetensors" "$OUT/runs/exact-2/model.safetensors" && echo "equal bits"
}
evaluate_again() {
  demo_run again --precision fp32 && vit evaluate --ckpt "$OUT/runs/again" --json --quiet >"$OUT/runs/again.json" && check same "$OUT/runs/again/summary.json" "$OUT/runs/again.json"
}
taught() {
  vit teach demo --add demo --quiet --overwrite --out "$OUT/runs/taught" && vit teach demo --add demo --device cpu --quiet --overwrite --out "$OUT/runs/taught-cpu" &&
    check taught "$OUT/runs/taught" "$OUT/runs/taught-cpu"
}
torchrun_once() { $PYTHON -m torch.distributed.run --nproc-per-node 1 -m vitcli finetune --dataset demo --ckpt demo --steps 5 --quiet --overwrite --out "$OUT/runs/torchrun"; }
limited() { # SECONDS
  local began_at=$SECONDS
  vit finetune --dataset demo --ckpt demo --epochs 100000 --max-time "$1s" --quiet --overwrite --out "$OUT/runs/limited" && check replanned "$OUT/runs/limited" "$1" $((SECONDS - began_at))
}
terminated() {
  local words=(finetune --dataset demo --ckpt demo --steps 400 --precision bf16 --set train.save_every=20 --out "$OUT/runs/terminated" --quiet) pid code
  $PYTHON -m vitcli "${words[@]}" >/dev/null 2>&1 &
  pid=$!
  until ls "$OUT"/runs/terminated/checkpoints/step_* >/dev/null 2>&1 || ! kill -0 $pid 2>/dev/null; do sleep 0.2; done
  kill -TERM $pid
  wait $pid
  code=$?
  [ $code -eq 143 ] || { echo "after SIGTERM: exit code $code, not 143"; return 1; }
  vit "${words[@]}"
}
refused() { # CODE COMMAND...: with it, in three lines
  local expected=$1 code shown
  shift
  shown=$("$@" 2>&1)
  code=$?
  echo "$shown"
  [ $code -eq "$expected" ] || { echo "exit code $code, not $expected"; return 1; }
  tail -3 <<<"$shown" | head -1 | grep -q '^error: ' || { echo "not three lines"; return 1; }
}
part_of_auto() { b16 --batch-size 512 --per-device-batch auto --dry-run --json "$@" | check part; }
evaluated() { # MODEL: fresh weights on the photographs
  vit pretrain --recipe pretrain/b16-imagenet --model "$1" --dataset "$photos" --res 224 --quiet --set schedule.warmup=10% --batch-size 32 --steps 1 --overwrite --out "$OUT/runs/$1" &&
    vit evaluate --ckpt "$OUT/runs/$1" --dataset "$photos" --precision bf16 --json --quiet >"$OUT/runs/evaluated.json" && check speed "$OUT/runs/evaluated.json"
}
profiled() {
  b16 --batch-size 512 --steps 8 --profile --overwrite --out "$OUT/runs/profiled-$$" "$@" && cat "$OUT/runs/profiled-$$/profile.txt" && check busy "$OUT/runs/profiled-$$/profile.txt" 0.9
}
