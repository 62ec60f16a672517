#!/usr/bin/env bash
# Read by gpu.sh and gpu_smoke.sh: --photos DATA, --dry-run, and the interpreter PYTHON.
dry_run=""
while [ $# -gt 0 ]; do
  case $1 in
    --photos) photos=${2:?--photos needs a data set}; shift 2 ;;
    --dry-run) dry_run=yes; shift ;;
    *) echo "unknown option $1; see the head of $0" >&2; exit 2 ;;
  esac
done
PYTHON=${PYTHON:-python}
