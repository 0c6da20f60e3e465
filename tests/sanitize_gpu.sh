#!/usr/bin/env bash
# The unit tests on a GPU under NVIDIA's compute-sanitizer, each test function by itself:
#   tests/sanitize_gpu.sh BUILD [TOOL...] [-- TEST...]
#   JOBS=N SECONDS_EACH=N   functions that run side by side, and how long one may take; default 8 and 500
# Tools: memcheck, initcheck and racecheck, the default being all; the last wants a BUILD that was
# configured with -DSMALLWORLD_RACECHECK=ON. A TEST is the name of a program without its `test_`, or of one
# of its functions, ops/test_adam; with `:portable` it tests the kernels of any GPU. Each line is a tool's
# closing line on a function; what it had to say before goes to BUILD/sanitize/. Fails where a test or a
# tool does; a function that does not end in time is named, with the errors until then. Wide models and,
# with SMALLWORLD_TEST_EVERY=N, all but each Nth of like cases are left out.
set -euo pipefail
[ $# -gt 0 ] || { sed -n '2,11s/^# //p' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."

build=$1
shift
tools=() tests=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do tools+=("$1"); shift; done
[ $# -eq 0 ] || shift
tests=("$@")
[ ${#tools[@]} -gt 0 ] || tools=(memcheck initcheck racecheck)
[ ${#tests[@]} -gt 0 ] || tests=(products conv dispatch chain cell cell_sequence ops model train
                                 logistic fit probe products:portable conv:portable dispatch:portable
                                 chain:portable cell:portable ops:portable model:portable)

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

# Runs one function under one tool and prints its line.
check() { # TOOL PROGRAM FUNCTION MODE
  local log=$build/sanitize/$1-$2-$3${4#-}.txt start=$SECONDS status=0 closing
  local options=(--tool "$1" --error-exitcode 9)
  [ "$1" != memcheck ] || options+=(--leak-check full)
  local mode=${4#-} # xargs joins lines that end in a space, so "none" is a dash
  [ -z "$mode" ] || export SMALLWORLD_PORTABLE=1
  SMALLWORLD_TEST=$3 timeout "$each" "$sanitizer" "${options[@]}" "$build/tests/test_$2" >"$log" 2>&1 ||
    status=$?
  closing=$(grep '^========= .*SUMMARY' "$log" | tr '\n' ' ' || true)
  if [ "$status" -eq 124 ]; then
    closing="did not end; $(grep -c '^========= \(Error\|Invalid\|Race\|Uninit\)' "$log" || true) findings until then"
  fi
  printf '%-10s %-14s %-32s exit %3d  %4d s  %s\n' "$1" "$2$mode" "$3" "$status" $((SECONDS - start)) \
    "${closing:-$(tail -n 1 "$log")}"
  [ "$status" -eq 0 ]
}
export -f check
export build sanitizer each=${SECONDS_EACH:-500} SMALLWORLD_TEST_DEVICE=cuda OMP_WAIT_POLICY=passive
export SMALLWORLD_TEST_EVERY=${SMALLWORLD_TEST_EVERY:-1}
mkdir -p "$build/sanitize"

for tool in "${tools[@]}"; do
  for test in "${tests[@]}"; do
    name=${test%:portable} mode=-
    [ "$name" = "$test" ] || mode=:portable
    functions=${name#*/} program=${name%%/*}
    [ "$functions" != "$program" ] ||
      functions=$(grep -oE '(cmocka_unit_test|TEST)\(test_\w+\)' "tests/test_$program.c" | grep -oE 'test_\w+')
    for function in $functions; do echo "$tool $program $function $mode"; done
  done
done | xargs -P "${JOBS:-8}" -L 1 bash -c 'check "$@" || exit 1' check
