#!/usr/bin/env bash
# Fuzzes every target with libFuzzer under AddressSanitizer and UndefinedBehaviorSanitizer:
#   tests/fuzz/run.sh [SECONDS [TARGET...]]   default: 3600 seconds in all, shared among all targets
# Inputs that reach new code gather in build-fuzz/corpus/TARGET, from which the next run goes on. An input
# that crashes, hangs, or takes more memory than it should is left in build-fuzz/TARGET-*, and the script
# fails: mend the fault and add the input to TARGET's folder in tests/fuzz/corpus.tar.gz.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:-3600}
shift || true
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(safetensors model state probe config npy json graph text products)

scripts/install.sh --fuzz
instrument="-DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION -g -O1 -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined"
scripts/build.sh build-fuzz -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=None -DSMALLWORLD_FUZZ=ON \
  -DSMALLWORLD_CUDA=OFF -DCMAKE_C_FLAGS="$instrument -fno-sanitize-recover=all" \
  -DCMAKE_EXE_LINKER_FLAGS=-fsanitize=address,undefined -- "${targets[@]/#/fuzz_}"

TMPDIR=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

fuzz() { # TARGET
  local corpus=build-fuzz/corpus/$1
  local options=(-max_total_time=$each -max_len=65536 -timeout=60 -rss_limit_mb=1024 -malloc_limit_mb=256
                 -print_final_stats=1 -artifact_prefix="build-fuzz/$1-" -dict=tests/fuzz/words.dict)
  local seeds="build-fuzz/tests/fuzz/corpus/$1"
  mkdir -p "$corpus" "$seeds"
  if ! FUZZ_SEEDS=$seeds "build-fuzz/tests/fuzz/fuzz_$1" "${options[@]}" "$corpus" "$seeds" \
      >"build-fuzz/$1.log" 2>&1; then
    echo "$1: FAILED; the end of build-fuzz/$1.log:"
    tail -n 30 "build-fuzz/$1.log"
    return 1
  fi
  awk -v target="$1" '/cov:/ { for (i = 1; i < NF; i++) if ($i == "cov:") edges = $(i + 1) }
    /number_of_executed_units/ { units = $2 } /peak_rss_mb/ { peak = $2 }
    END { printf "%-12s %10d inputs  %5d edges  %4d MB at most\n", target, units, edges, peak }' \
    "build-fuzz/$1.log"
}

jobs=$(nproc) status=0
each=$((seconds * jobs / ${#targets[@]}))
export -f fuzz
export each
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz {}' || status=1
exit $status
