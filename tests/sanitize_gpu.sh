#!/usr/bin/env bash
# The unit tests on a GPU under NVIDIA's compute-sanitizer:
#   tests/sanitize_gpu.sh BUILD [TOOL...] [-- TEST...]
# Tools: memcheck, initcheck and racecheck, the default being all; the last wants a BUILD that was
# configured with -DSMALLWORLD_RACECHECK=ON. A TEST is the name of a program without its `test_`; with
# `:portable` it tests the kernels of any GPU. Each line is a tool's closing line on a test; what it had
# to say before goes to BUILD/sanitize-TOOL-TEST.txt. Fails where a test or a tool does.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,8s/^# //p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."

build=$1
shift
tools=() tests=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do tools+=("$1"); shift; done
[ $# -eq 0 ] || shift
tests=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck initcheck racecheck)
[ ${#tests[@]} -gt 0 ] || tests=(products dispatch chain cell cell_sequence ops model patterns train
                                 logistic fit probe products:portable dispatch:portable
                                 chain:portable cell:portable ops:portable model:portable
                                 patterns:portable)

sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if ! [ -x "$sanitizer" ]; then
  echo "sanitize_gpu.sh: expected compute-sanitizer, which comes with the CUDA toolkit" >&2
  exit 1
fi
if [[ " ${tools[*]} " == *" racecheck "* ]] && [ -f "$build/CMakeCache.txt" ] &&
    ! grep -q '^SMALLWORLD_RACECHECK:BOOL=\(ON\|1\|TRUE\)$' "$build/CMakeCache.txt"; then
  echo "sanitize_gpu.sh: racecheck wants a build with -DSMALLWORLD_RACECHECK=ON" >&2
  exit 1
fi

export SMALLWORLD_TEST_DEVICE=cuda OMP_WAIT_POLICY=passive
failed=0
for tool in "${tools[@]}"; do
  options=(--tool "$tool" --error-exitcode 9)
  [ "$tool" != memcheck ] || options+=(--leak-check full)
  for test in "${tests[@]}"; do
    name=${test%:portable} log=$build/sanitize-$tool-${test/:/-}.txt start=$SECONDS status=0
    unset SMALLWORLD_PORTABLE
    [ "$name" = "$test" ] || export SMALLWORLD_PORTABLE=1
    "$sanitizer" "${options[@]}" "$build/tests/test_$name" >"$log" 2>&1 || status=$?
    closing=$(grep '^========= .*SUMMARY' "$log" | tr '\n' ' ' || true)
    printf '%-10s %-18s exit %d  %4d s  %s\n' "$tool" "$test" "$status" $((SECONDS - start)) \
      "${closing:-$(tail -n 1 "$log")}"
    [ "$status" -eq 0 ] || failed=1
  done
done
exit $failed
