#!/usr/bin/env bash
# ThreadSanitizer over what runs beside the training loop: the reader's thread, progress and signals.
#   tests/faults/threads.sh [BUILD]   default: build-threads
# The loops of OpenMP run on one thread here: GCC's OpenMP library is not built for ThreadSanitizer, which
# takes its barriers for races.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${1:-build-threads}
scripts/install.sh
scripts/build.sh "$build" -DSMALLWORLD_CUDA=OFF -DSMALLWORLD_CPU_LEVELS= -DCMAKE_BUILD_TYPE=None \
  -DCMAKE_C_FLAGS="-g -O1 -fsanitize=thread" -- smallworld test_minibatches

export TSAN_OPTIONS="halt_on_error=1 exitcode=66" OMP_NUM_THREADS=1
run=(setarch -R) # ThreadSanitizer of GCC 12 wants the address layout that it knows
"${run[@]}" "$build/tests/test_minibatches"
for signal in TERM INT; do
  "${run[@]}" /usr/bin/python3 -B tests/faults/kills.py "$build/smallworld" --device cpu \
    --signal "$signal" --count 3
done
echo "ThreadSanitizer: no race"
