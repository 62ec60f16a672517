#!/usr/bin/env bash
# The first GPU: thirty checks in about eight minutes, each ok, failed and why, or skipped; a table at the end.
#
#     benchmarks/gpu_smoke.sh [--photos DATA] [--dry-run]
#
# DATA is a data set of photographs (default: the demo, drawn at 64 px); VIT_TEST_DATA names the golden values. A failed
# check ends nothing. Without a GPU the checks that need one are skipped and the others run on the CPU; --dry-run lists
# them all. ONLY="4 5 20" runs some. Code 1 if any failed. PYTHON names another interpreter.
set -u
cd "$(dirname "$0")/.." || exit 1
photos="demo:pretrain"
. benchmarks/gpu_options.sh
LIMIT_S=${LIMIT_S:-120} # of a command
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
out=$(mktemp -d) && trap 'rm -rf "$out"' EXIT
has_gpu=""
[ -z "$dry_run" ] && $PYTHON -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null && has_gpu=yes

vit() { timeout "$LIMIT_S" $PYTHON -m vitcli "$@"; }
check() { timeout "$LIMIT_S" $PYTHON benchmarks/gpu_checks.py "$@"; }
finetune() { # F: the demo, 20 steps, every loss logged
  vit finetune --dataset demo --steps "${STEPS:-20}" --quiet --set train.log_every=1 --overwrite "$@"
}
pretrain() { # P: B/16 on photographs
  vit pretrain --recipe pretrain/b16-imagenet --dataset "$photos" --res 224 --quiet "$@"
}
three_lines() { # a code, then a command that is refused with it in three lines
  local code=$1
  shift
  "$@" >"$out/refused" 2>&1
  local got=$?
  tail -3 "$out/refused"
  [ $got -eq "$code" ] || { echo "exit code $got, not $code"; return 1; }
  tail -3 "$out/refused" | head -1 | grep -q '^error: ' || { echo "no three lines"; return 1; }
}
part_of() { $PYTHON -c 'import json, sys; print(json.load(sys.stdin)["per_device_batch"])'; }

# Each check: its number, whether it needs a GPU, its name; its body is the function of that number.
check_1() { nvidia-smi; }
check_2() { $PYTHON -c 'import torch; assert torch.cuda.is_available(); print(torch.cuda.get_device_name())'; }
check_3() { vit doctor --json >"$out/doctor.json" && check doctor "$out/doctor.json"; }
check_4() { finetune --device cpu --precision fp32 --out "$out/cpu" && finetune --precision fp32 --out "$out/4" && check losses "$out/cpu" "$out/4" 0.02; }
check_5() { finetune --precision bf16 --out "$out/5" && check losses "$out/cpu" "$out/5" 0.02; }
check_6() { finetune --precision fp16 --out "$out/6" && check losses "$out/cpu" "$out/6" 0.02; }
check_7() { local at=$SECONDS; vit finetune --dataset demo --steps "${STEPS:-20}" --quiet --set train.log_every=1 --precision fp32 --out "$out/4" --json && [ $((SECONDS - at)) -le 20 ]; }
check_8() { finetune --precision bf16 --exact --out "$out/8a" && finetune --precision bf16 --exact --out "$out/8b" && cmp "$out/8a/model.safetensors" "$out/8b/model.safetensors"; }
check_9() { vit doctor resume --precision fp32 --steps 12 --kills 1 --quiet; }
check_10() { vit doctor resume --precision bf16 --res 384 --batch-size 8 --steps 6 --kills 1 --quiet; }
check_11() { vit evaluate --ckpt "$out/4" --json --quiet >"$out/11.json" && check same "$out/4/summary.json" "$out/11.json"; }
check_12() { check goldens; }
check_13() { check forward; }
check_14() { TORCH_LOGS=recompiles finetune --precision bf16 --compile --out "$out/14" 2>"$out/14.err"; local code=$?; [ $code -eq 0 ] || { tail -3 "$out/14.err"; return 1; }; ! grep -m1 -i recompiling "$out/14.err"; }
check_15() { vit evaluate --ckpt "$out/14" --json --quiet >"$out/15.json" && check same "$out/14/summary.json" "$out/15.json"; }
check_16() { vit pretrain --recipe pretrain/b16-masked-patch --dataset "$photos" --res 224 --batch-size 32 --steps 5 --quiet --out "$out/16"; }
check_17() { pretrain --model R50+ViT-B/16 --batch-size 32 --steps 5 --out "$out/17"; }
check_18() { pretrain --batch-size 512 --per-device-batch auto --dry-run --json | part_of; }
check_19() {
  local words=(--model ViT-L/16 --res 384 --batch-size 512 --per-device-batch auto --dry-run --json) plain kept
  plain=$(pretrain "${words[@]}" | part_of) && kept=$(pretrain "${words[@]}" --set model.grad_checkpointing=true | part_of)
  echo "$plain images a part, $kept with gradient checkpointing"
  [ "$kept" -gt "$plain" ]
}
check_20() { three_lines 5 pretrain --model ViT-L/16 --res 384 --batch-size 65536 --per-device-batch 65536 --steps 1 --out "$out/20"; }
check_21() { three_lines 5 finetune --num-processes $(($(nvidia-smi -L | wc -l) + 1)) --out "$out/21"; }
check_22() { timeout "$LIMIT_S" $PYTHON -m torch.distributed.run --nproc-per-node 1 -m vitcli finetune --dataset demo --steps 5 --quiet --out "$out/22"; }
check_23() { check synchronizations "$out/23"; }
check_24() { pretrain --batch-size 512 --per-device-batch 64 --dry-run --measure --json | grep measured; }
check_25() { pretrain --batch-size 512 --per-device-batch 256 --dry-run --measure --json | grep measured; }
check_26() { pretrain --batch-size 512 --per-device-batch 512 --dry-run --measure --json | grep measured; }
check_27() { vit bench train --model ViT-B/16 --res 224 --batch-size "${BATCH:-512}" --quiet; }
check_28() { vit bench data --dataset "$photos" --res 224 --workers 16 --quiet; }
check_29() { pretrain --batch-size 512 --steps 8 --profile --out "$out/29" && cat "$out/29/profile.txt" && check busy "$out/29/profile.txt" 0.9; }
check_30() {
  local words=(finetune --dataset demo --steps 400 --precision bf16 --set train.save_every=20 --out "$out/30" --quiet)
  timeout "$LIMIT_S" $PYTHON -m vitcli "${words[@]}" >/dev/null 2>&1 &
  local pid=$! at=$SECONDS
  until ls "$out"/30/checkpoints/step_* >/dev/null 2>&1; do sleep 0.2; [ $((SECONDS - at)) -gt 60 ] && break; done
  kill -TERM $pid
  wait $pid
  local code=$?
  [ $code -eq 143 ] || { echo "after SIGTERM: exit code $code, not 143"; return 1; }
  vit "${words[@]}" --json >"$out/30.json"
}
names=(
  "1 gpu nvidia-smi" "2 gpu CUDA is available" "3 any doctor names the GPU; auto is bf16"
  "4 any fine-tune, fp32: losses of the CPU" "5 any the same, bf16" "6 gpu the same, fp16"
  "7 any again: the summary at once" "8 any bf16 --exact twice: one hash" "9 any doctor resume, fp32"
  "10 gpu doctor resume, bf16 at 384 px" "11 any evaluate: the numbers of the summary" "12 any goldens below 2e-5"
  "13 any one batch, fp32: the CPU's outputs" "14 gpu --compile: no recompilation in training"
  "15 gpu its evaluation is equal" "16 gpu masked patches, 5 steps" "17 gpu hybrid R50+B/16, 5 steps"
  "18 gpu --per-device-batch auto, B/16 at 512" "19 gpu L/16 at 384: larger parts with checkpointing"
  "20 gpu too large a part: three lines" "21 gpu more processes than GPUs: three lines" "22 any torchrun, one process"
  "23 gpu no synchronisation per part" "24 gpu B/16, parts of 64" "25 gpu B/16, parts of 256" "26 gpu B/16, parts of 512"
  "27 gpu B/16 on one repeated batch: the ceiling" "28 any the loader alone, 16 threads"
  "29 gpu a trace of three steps: gaps below 10 %" "30 any SIGTERM with a save, then resume"
)
[ -z "$dry_run" ] && [ -z "$has_gpu" ] && echo "no GPU here: the checks that need one are skipped"
table="" failed=0
for line in "${names[@]}"; do
  read -r number needs name <<<"$line"
  [ -n "${ONLY:-}" ] && [[ " $ONLY " != *" $number "* ]] && continue
  began_at=$SECONDS why=""
  if [ -n "$dry_run" ]; then
    result="listed"
  elif [ "$needs" = gpu ] && [ -z "$has_gpu" ]; then
    result="skipped" why="no GPU"
  else
    "check_$number" >"$out/log" 2>&1
    code=$?
    result="ok" why=$(tail -1 "$out/log")
    if [ $code -ne 0 ]; then
      result="failed" failed=1 why="code $code: $(tail -3 "$out/log" | tr '\n' ' ')"
      [ $code -eq 124 ] && why="took more than $LIMIT_S s"
    fi
  fi
  table+="| $number | $name | $result | $((SECONDS - began_at)) s | ${why:0:300} |"$'\n'
  printf '%2s %-7s %s%s\n' "$number" "$result" "$name" "${why:+: ${why:0:160}}"
done
printf '\n| | check | result | time | |\n|---|---|---|---|---|\n%s' "$table"
exit $failed
