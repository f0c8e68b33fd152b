#!/usr/bin/env bash
# The path on a machine with an NVIDIA card: sensors beside nvidia-smi, CUDA inside the sandbox, how fast the card comes back; then
# isolation: one card and its nodes only, nothing of who had its memory before, what a freeze does to kernels that are queued.
# Needs root, the vendor's driver with nvidia-smi, busybox, Xvfb, xdotool, and Rust. Prints everything; exit code 0 means: as promised.
#   sudo tests/gpu/run.sh | tee docs/measurements/gpu-<model>.md
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v nvidia-smi >/dev/null || { echo "no nvidia-smi: install the vendor's driver first" >&2; exit 5; }
[ "$(id -u)" = 0 ] || { echo "this must run as root: the sandbox needs it" >&2; exit 2; }
for program in busybox Xvfb xdotool; do
  command -v "$program" >/dev/null || { echo "$program is missing: apt-get install busybox-static xvfb xdotool" >&2; exit 2; }
done
cargo build --locked --quiet
target/debug/sela-real-card
