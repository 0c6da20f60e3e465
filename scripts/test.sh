#!/usr/bin/env bash
# Installs, builds and runs every test: scripts/test.sh [CMAKE OPTION...]
#   BUILD=FOLDER                     builds there instead of in build/
#   SMALLWORLD_REQUIRE_ALL_TESTS=1   makes a skipped test a failure, except the GPU's on a machine without one
set -euo pipefail
cd "$(dirname "$0")/.."

build=${BUILD:-build}
if [ "${SMALLWORLD_REQUIRE_ALL_TESTS:-0}" = 1 ]; then
  scripts/install.sh --tests
else
  scripts/install.sh # without Chromium, its tests are skipped
fi
scripts/build.sh "$build" "$@"
# Tests that wait for a command give up after ten minutes; one that does not is ended after fifteen.
ctest --test-dir "$build" --parallel "$(nproc)" --output-on-failure --no-tests=error --timeout 900 |
  tee "$build/tests.txt"

if [ "${SMALLWORLD_REQUIRE_ALL_TESTS:-0}" = 1 ]; then
  skipped=$(sed -nE 's/^.*- ([^ ]+) \((Skipped|Not Run|Disabled)\)$/\1/p' "$build/tests.txt")
  nvidia-smi -L >/dev/null 2>&1 || skipped=$(grep -v '\.cuda$' <<<"$skipped" || true)
  if [ -n "$skipped" ]; then
    echo "test.sh: skipped, which is a failure here:" $skipped >&2
    exit 1
  fi
fi
