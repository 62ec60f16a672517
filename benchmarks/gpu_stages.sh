#!/usr/bin/env bash
# A visit to a GPU in stages of at most nine minutes: a: does it run, and is it right; b: how fast; c: why so fast.
#
#     benchmarks/gpu_stages.sh a|b|c [--photos DATA] [--only REGEX] [--dry-run]
#
# A row has a limit in seconds, a name, what was expected before any GPU had run it, and a command. Its line (name,
# exit code, seconds, what was printed last, what was expected) is in $OUT/rows.tsv and on standard output as soon as
# it ends; results of `vit bench` are lines of $OUT/bench.jsonl. A row that fails ends nothing; one that would not end
# within the stage is left out. Rows marked `beside` run six at a time. DATA is a data set of photographs (default: the
# demo, drawn at 64 px); --only takes the rows whose name it matches; --dry-run lists them. VIT_TEST_DATA names the
# golden values, PYTHON another interpreter, STAGE_S the seconds of the stage. Code 1 if any row failed.
set -u
cd "$(dirname "$0")/.." || exit 1
usage() { echo "$1; see the head of $0" >&2; exit 2; }
stage=${1:-} photos="demo:pretrain" only="" dry_run=""
[ $# -gt 0 ] && shift
while [ $# -gt 0 ]; do
  case $1 in
    --photos) photos=${2:?--photos needs a data set}; shift 2 ;;
    --only) only=${2:?--only needs a regular expression}; shift 2 ;;
    --dry-run) dry_run=yes; shift ;;
    *) usage "unknown option $1" ;;
  esac
done
[[ $stage =~ ^[abc]$ ]] || usage "no stage ${stage:-given}"
export PYTHON=${PYTHON:-python3} OUT=${OUT:-$(mktemp -d)} PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" photos
STAGE_S=${STAGE_S:-540} MOST_BESIDE=6
mkdir -p "$OUT/log" "$OUT/runs"

row() { # LIMIT NAME EXPECTED COMMAND...
  is_wanted "$2" || return 0
  wait
  run_row "$@"
}
beside() { # the same, while others run
  is_wanted "$2" || return 0
  while [ "$(jobs -rp | wc -l)" -ge $MOST_BESIDE ]; do sleep 0.1; done
  OMP_NUM_THREADS=2 run_row "$@" &
}
is_wanted() { [ -z "$only" ] || [[ $1 =~ $only ]]; }
run_row() {
  local limit=$1 name=$2 expected=$3 began_at=$SECONDS code log
  shift 3
  [ -n "$dry_run" ] && { printf '%s: %s\n' "$name" "$*"; return; }
  log="$OUT/log/$stage-${name//[^a-zA-Z0-9]/_}"
  if [ $((SECONDS + limit)) -gt "$STAGE_S" ]; then
    echo "left out: only $((STAGE_S - SECONDS)) s of the stage are left" >"$log"
    code="-"
  else
    timeout "$limit" bash -c 'source benchmarks/gpu_rows.sh; "$@"' row "$@" >"$log" 2>&1
    code=$?
  fi
  printf '%s\t%s\t%s s\t%s\t%s\n' "$name" "$code" $((SECONDS - began_at)) \
    "$(tail -c 4000 "$log" | grep -v '^ *$' | tail -1 | cut -c 1-300)" "$expected" | tee -a "$OUT/rows.tsv"
}

stage_a() {
  row 30 "versions" "torch >= 2.11, one GPU" check about
  row 60 "first fine-tuning, bf16" "20 steps; nothing has run on CUDA before this row" demo_run first --precision bf16
  row 60 "train B/16, eager" "2,650 images/s, level with timm" bench train --model ViT-B/16 --res 224 --batch-size 256 --per-device-batch 256 --precision bf16 --steps 8 --repeats 2 --compare timm
  beside 60 "doctor" "names the GPU; auto is bf16" doctor_names_the_gpu
  beside 60 "goldens, fp32" "< 2e-5 from the authors' outputs" check goldens
  beside 60 "one batch, fp32" "< 1e-4 from the CPU's outputs" check forward
  beside 90 "losses of the CPU, fp32" "within 2 %" losses_of_the_cpu fp32
  beside 90 "losses of the CPU, bf16" "within 2 %" losses_of_the_cpu bf16
  beside 90 "losses of the CPU, fp16" "within 2 %" losses_of_the_cpu fp16
  beside 90 "--exact twice" "one hash" exact_twice
  beside 90 "evaluate" "the numbers of the summary" evaluate_again
  beside 60 "torchrun, one process" "exit code 0" torchrun_once
  beside 90 "a limit of 30 s" "plans again, and ends in time (H1)" limited 30
  beside 90 "SIGTERM, then resume" "143, then 0" terminated
  beside 90 "waits for the GPU" "as many in steps of one part as of eight" check synchronizations "$OUT/runs/waits"
  beside 60 "masked patches" "5 steps" vit pretrain --recipe pretrain/b16-masked-patch --dataset "$photos" --res 224 --batch-size 32 --steps 5 --quiet --set schedule.warmup=10% --out "$OUT/runs/masked"
  beside 60 "hybrid" "5 steps" b16 --model R50+ViT-B/16 --batch-size 32 --steps 5 --out "$OUT/runs/hybrid"
  beside 60 "LoRA" "20 steps" demo_run lora --set model.lora_rank=4
  beside 60 "rising sizes" "20 steps" demo_run sizes --set "schedule.image_sizes=[32,48,64]"
  beside 60 "patience" "ends early or at step 20" demo_run patience --set train.patience=2 --set eval.every=5
  beside 60 "averaged weights" "20 steps" demo_run average --set optimizer.average=0.9
  beside 60 "probe head" "delivered or passed" demo_run probe --set model.head=probe
  beside 90 "folds" "three folds and a last run" demo_run folds --folds 3
  beside 90 "a sweep" "two rates" demo_run sweep --lr 0.01,0.03
  beside 60 "few-shot, all layers" "exit code 0" vit fewshot --ckpt demo --dataset demo --layers all --quiet
  beside 60 "teach" "the CPU's integers to a few units, its accuracy" taught
  beside 60 "inspect" "exit code 0" vit inspect demo --dataset demo --out "$OUT/runs/inspect" --quiet
  beside 90 "doctor resume, fp32" "equal bits" vit doctor resume --precision fp32 --steps 12 --kills 1 --quiet
  beside 90 "doctor resume, bf16" "equal bits" vit doctor resume --precision bf16 --exact --res 384 --batch-size 8 --steps 6 --kills 1 --quiet
  beside 60 "more processes than GPUs" "exit code 5 in three lines" refused 5 demo_run crowd --num-processes 99
  row 60 "too large a part" "exit code 5 in three lines" refused 5 b16 --model ViT-L/16 --res 384 --batch-size 4096 --per-device-batch 4096 --steps 1 --out "$OUT/runs/large"
  row 60 "auto, B/16" "512 images or more a part" part_of_auto --model ViT-B/16
  row 60 "auto, L/16 at 384" "128 or more a part" part_of_auto --model ViT-L/16 --res 384
  row 60 "auto, L/16 at 384, checkpointing" "larger" part_of_auto --model ViT-L/16 --res 384 --set model.grad_checkpointing=true
}

stage_b() {
  local train="bench train --res 224 --precision bf16 --steps 8 --repeats 2" infer="bench infer --precision bf16 --repeats 2 --steps 8"
  row 30 "ceilings" "3.0 TB/s, 798 TFLOP/s (H100)" check ceilings
  row 150 "train B/16, compiled" "3,160 images/s; 33 % of 989 TFLOP/s" $train --model ViT-B/16 --batch-size 256 --per-device-batch 256 --compile
  row 40 "train S/16, eager" "6,500 images/s" $train --model ViT-S/16 --batch-size 512 --per-device-batch 512
  row 40 "train L/16, eager" "880 images/s" $train --model ViT-L/16 --batch-size 128 --per-device-batch 128
  row 40 "train Ti/16, eager" "14,300 images/s" $train --model ViT-Ti/16 --batch-size 512 --per-device-batch 512
  row 60 "infer Ti, B, L" "51,000, 9,100 and 3,050 images/s" $infer --models ViT-Ti/16,ViT-B/16,ViT-L/16 --res 224 --batch-size 256
  row 40 "infer L/16 at 384" "990 images/s" $infer --models ViT-L/16 --res 384 --batch-size 128
  row 40 "infer B/16, fp32" "1,300 images/s" bench infer --models ViT-B/16 --res 224 --batch-size 256 --precision fp32 --repeats 2 --steps 4
  row 60 "the loader alone" "13,000 photographs/s with 16 threads" bench data --dataset "$photos" --res 224 --workers 16
  row 60 "the loader's interpreter" "6,000 images/s, 9,000 at most (M3)" "$PYTHON" benchmarks/interpreter.py "$photos"
  row 60 "B/16 from photographs" "the synthetic rate" $train --model ViT-B/16 --batch-size 256 --per-device-batch 256 --dataset "$photos"
  row 60 "S/16 from photographs" "at the edge of one process" $train --model ViT-S/16 --batch-size 512 --per-device-batch 512 --dataset "$photos"
  row 60 "Ti/16 from decoded photographs" "bound by the interpreter: 6,000 images/s" $train --model ViT-Ti/16 --batch-size 512 --per-device-batch 512 --dataset "$photos" --cached
  row 60 "evaluate Ti/16" "bound by one thread: 6,000 images/s" evaluated ViT-Ti/16
  row 60 "evaluate B/16" "near the forward pass" evaluated ViT-B/16
}

stage_c() {
  row 90 "profile B/16, eager" "GPU busy for 90 %" profiled --model ViT-B/16
  row 150 "profile B/16, compiled" "GPU busy for 90 %" profiled --model ViT-B/16 --compile
  row 60 "profile Ti/16, eager" "launches and the interpreter show" profiled --model ViT-Ti/16
  row 90 "attention" "flash 180 to 300 TFLOP/s" check attention
  row 60 "decoding on the GPU" "another level in some pixels" check nvjpeg "$photos"
}

"stage_$stage"
wait
[ -n "$dry_run" ] || ! cut -f 2 "$OUT/rows.tsv" | grep -qv '^[0-]$'
