#!/usr/bin/env bash
# Checks the sources without running them: scripts/lint.sh [BUILD FOLDER]
#   format      clang-format 14 has nothing to change (other versions break some lines elsewhere)
#   width       no line has more than 100 columns, comments included, which clang-format leaves alone
#   clang-tidy  finds nothing in the C files; it reads the build folder's compile_commands.json
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build}
scripts/install.sh --lint
sources=$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
failed=0

if [ ! -f "$build/compile_commands.json" ]; then
  echo "lint.sh: $build/compile_commands.json is missing; scripts/build.sh $build makes it" >&2
  exit 1
fi

clang-format-14 --dry-run --Werror $sources || failed=1
if LC_ALL=C.UTF-8 grep -nE '.{101,}' $sources; then
  echo "lint.sh: the lines above have more than 100 columns" >&2
  failed=1
fi
# xargs prints the findings of each file at once, and fails if any clang-tidy fails. With the analyzer's
# usual limit of 225,000 nodes a function takes five times as long.
limit=(-Xclang -analyzer-config -Xclang max-nodes=20000)
git ls-files 'src/*.c' 'kernels/*.c' |
  xargs -P "$(nproc)" -n 1 clang-tidy-14 -p "$build" --quiet --warnings-as-errors='*' \
    "${limit[@]/#/--extra-arg=}" \
    2> >(grep -v 'warnings generated' >&2) || failed=1
exit $failed
