#!/usr/bin/env bash
# Configures and builds without output: scripts/build.sh FOLDER [CMAKE OPTION...] [-- TARGET...]
# Shows the compiler's output only if it fails. quickstart.sh and test.sh use this script.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$1
shift
options=() targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; [ $# -eq 0 ] || targets=(--target "$@"); break ;;
    *) options+=("$1"); shift ;;
  esac
done
# A configured folder keeps its generator.
if [ ! -f "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then options+=(-G Ninja); fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { cmake -S . -B "$folder" "${options[@]}" &&
       cmake --build "$folder" --parallel "$(nproc)" "${targets[@]}"; } >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
grep -h -E '^-- .*(CUDA|cmocka)' "$log" >&2 || true
