#!/bin/bash
# What to run on a machine with a GPU, in less than 8 minutes: gpu_check.sh [--dry-run] [DIRECTORY]
#
# 1. tokens and log-likelihoods on the GPU against the reference, plain torch operators on the CPU, in fp32
# 2. logits of the same steps in bf16 by torch operators, by FlashAttention and by CUDA graphs, against fp32's
# 3. tokens and throughput against transformers' generate on the same GPU, in fp32 and in bf16, and without CUDA graphs
# 4. the share of the GPU's roofline that a decode step of bf16 reaches
#
# Models are random and made here, so nothing is downloaded. Results go to DIRECTORY (default: a new temporary one).
# PYTHON: the interpreter that has megaserve's requirements (default: the repository's .venv).
# --dry-run does every step on the CPU with models of toy size: it checks the commands, not the GPU.

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-.venv/bin/python}
device=cuda
seconds=470
small=(--num-layers 4 --hidden-size 576)
large=(--num-layers 16 --hidden-size 2048)
work=(--repetitions 3)
checked=(--num-prompts 8 --max-new-tokens 32)
if [ "${1:-}" = --dry-run ]; then
    device=cpu
    seconds=3600
    small=(--num-layers 2 --hidden-size 64)
    large=(--num-layers 2 --hidden-size 128)
    work=(--repetitions 1 --num-prompts 3 --max-new-tokens 4)
    checked=(--num-prompts 3 --max-new-tokens 4)
    shift
fi
results=${1:-$(mktemp -d -t megaserve-gpu-check.XXXXXX)}
mkdir -p "$results"
export HF_HUB_OFFLINE=1

step() { # the command, for as long as there is time left
    printf '\n$ %s\n' "$*"
    timeout $((seconds > SECONDS ? seconds - SECONDS : 1)) "$@"
}

offline() { # model, dtype, name of the result, more arguments of `serve`: both implementations in turn
    step "$python" -m benchmarks offline --load "$results/$1/megatron" --compare-hf "$results/$1/hf" --dtype "$2" \
        --quiet-wait 0 --json "$results/$3.json" "${work[@]}" -- --device "$device" "${@:4}"
}

if [ "$device" = cuda ]; then
    step "$python" -c 'import torch
assert torch.cuda.is_available(), "torch sees no GPU"
print(torch.__version__, torch.cuda.get_device_name(), torch.cuda.get_device_capability())'
fi
step "$python" -W ignore -m benchmarks.random_llama "$results/small" "${small[@]}"
step "$python" -W ignore -m benchmarks.random_llama "$results/large" "${large[@]}"
step "$python" -m benchmarks.device_check --load "$results/small/megatron" --device "$device" "${checked[@]}"
step "$python" -m benchmarks.step_check --load "$results/small/megatron" --device "$device"
offline small fp32 small-fp32
offline large bf16 large-bf16
offline large bf16 large-bf16-without-graphs --no-cuda-graphs
step "$python" -m benchmarks.roofline "$results/large-bf16.json"
printf '\nResults are in %s\n' "$results"
