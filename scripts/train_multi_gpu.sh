#!/usr/bin/env bash
# Trains on all visible GPUs of this machine, or on those that CUDA_VISIBLE_DEVICES names.
#
#   scripts/train_multi_gpu.sh --config configs/run.yaml [options of kata train]
#   CUDA_VISIBLE_DEVICES=0,1 scripts/train_multi_gpu.sh --config configs/act.yaml --dataset.repo_id=<user>/<name>
#   RANKS=2 scripts/train_multi_gpu.sh …          two ranks on the CPU
#
# KATA names the command where it is not in PATH.
set -euo pipefail

if [[ $# -eq 0 || $1 == -h || $1 == --help ]]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 0
fi
beside=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin/kata
kata=${KATA:-$(command -v kata || echo "$beside")}
exec "$kata" launch ${RANKS:+"--ranks=$RANKS"} -- train "$@"
