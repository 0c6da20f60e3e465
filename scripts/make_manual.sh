#!/usr/bin/env bash
# Makes a man page of each command from its --help, by help2man: scripts/make_manual.sh PROGRAM OUT
set -euo pipefail

program=$1 out=$2
mkdir -p "$out"
version=$("$program" --version | head -1)

page() { # SUMMARY [COMMAND...]
  local summary=$1
  shift
  local name="smallworld $*"
  name=${name% }
  help2man --no-info --name="$summary" --version-string="$version" --output="$out/${name// /-}.1" "$program${*:+ $*}"
}

listed() { # [COMMAND]
  "$program" "$@" --help | sed -nE 's/^  ([a-z]+) +(.*)/\1 \2/p'
}

page "train byte-level LSTMs that are sparse along graphs"
listed | while read -r command summary; do page "$summary" "$command"; done
listed bench | while read -r name summary; do page "$summary" bench "$name"; done
touch "$out/made"
