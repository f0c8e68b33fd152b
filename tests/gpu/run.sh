#!/usr/bin/env bash
# The path on a machine with an NVIDIA card: sensors beside nvidia-smi, CUDA inside the sandbox, how fast the card comes back.
# Needs root, the vendor's driver with nvidia-smi, and Rust. Prints everything; exit code 0 means: as promised.
#   sudo tests/gpu/run.sh | tee docs/measurements/gpu-<model>.md
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v nvidia-smi >/dev/null || { echo "no nvidia-smi: install the vendor's driver first" >&2; exit 5; }
[ "$(id -u)" = 0 ] || { echo "this must run as root: the sandbox needs it" >&2; exit 2; }
command -v busybox >/dev/null || { echo "busybox is missing: apt-get install busybox-static" >&2; exit 2; }
cargo build --locked --quiet
target/debug/sela-real-card
