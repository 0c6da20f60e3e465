#!/usr/bin/env bash
# From a fresh clone to a trained model and its sentiment probe, on the CPU: installs, builds, trains
# configs/quickstart.yaml into runs/quickstart, scores the test reviews and fits the probe. Compares all
# results with the best possible ones and with those of the untrained model. Ends with a sample of the
# model's text and a page about the run. Exits with 1 if a target is missed. With --json, the last line
# of stdout is one JSON object, with bits per byte and errors in per cent. It can be run again.
set -euo pipefail
cd "$(dirname "$0")/.."

json=false
case ${1:-} in
  --json) json=true ;;
  '') ;;
  *) echo "usage: scripts/quickstart.sh [--json]" >&2; exit 2 ;;
esac

run=runs/quickstart
train=data/reviews_train.tsv.gz
test=data/reviews_test.tsv.gz
smallworld=build/smallworld
cpu=(--device cpu --threads 1)  # one thread each for two processes at once

say() { printf '\n== %d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*" >&2; }

say "Installing what is missing, building $smallworld"
scripts/install.sh
options=(-DCMAKE_BUILD_TYPE=Release)
# Without a GPU a first build leaves CUDA out, which takes most of the time.
[ -f build/CMakeCache.txt ] || nvidia-smi -L >/dev/null 2>&1 || options+=(-DSMALLWORLD_CUDA=OFF)
scripts/build.sh build "${options[@]}" -- installed

say "Training"
mkdir -p $run
"$smallworld" train configs/quickstart.yaml --device cpu --out $run --overwrite --json >$run/training.json
# The untrained model: one update with a learning rate near 0.
"$smallworld" train configs/quickstart.yaml --device cpu --out $run/untrained --overwrite \
  --set train.steps=1 --set train.lr=1e-30 --set train.valid_bytes=1000 >/dev/null 2>&1

say "Scoring $test"
"$smallworld" eval $run/last.safetensors --data $test "${cpu[@]}" --json >$run/eval.json

features_and_probe() { # FOLDER
  "$smallworld" features $1/last.safetensors --data $train --out $1/train "${cpu[@]}" --json >/dev/null
  "$smallworld" features $1/last.safetensors --data $test --out $1/test "${cpu[@]}" --json >/dev/null
  "$smallworld" probe --train $1/train --test $1/test "${cpu[@]}" \
    --out $1/probe --json >$1/probe.json
}

say "Features and probes: of the model, and of the model untrained"
set -m # a process group of its own, to be ended with this script
features_and_probe $run/untrained 2>$run/untrained/probe.txt &
untrained=$!
set +m
trap 'kill -- -$untrained 2>/dev/null || true' EXIT
features_and_probe $run
wait $untrained || { cat $run/untrained/probe.txt >&2; exit 1; }
trap - EXIT

say "What is possible, and what a compressor does"
framed() { # as eval sees documents: "\n " + text + " "
  gzip -dc "$@" | LC_ALL=C awk '{ printf "\n %s ", substr($0, index($0, "\t") + 1) }'
}
python3 scripts/make_corpus.py floor $test >$run/floor.json
xz_train=$(framed $train | xz -9 | wc -c)
xz_both=$(framed $train $test | xz -9 | wc -c)

say "A sample, and a page of the run"
"$smallworld" generate $run --bytes 400 "${cpu[@]}" >$run/sample.txt
"$smallworld" report $run --data $test "${cpu[@]}" >/dev/null

JSON=$json python3 - $run $((xz_both - xz_train)) $SECONDS <<'END'
import json, os, sys
from pathlib import Path

run, xz_bytes, seconds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
read = lambda name: json.loads((run / name).read_text().splitlines()[-1])
train, score, floor = read("training.json"), read("eval.json"), read("floor.json")
sample = (run / "sample.txt").read_bytes().decode("latin-1")
assert floor["N"] == score["bytes"], "the floor and the score are over different bytes"
result = {
    "floor_bpc": floor["floor_bpc"],
    "bpc": score["bpc"],
    "xz_bpc": 8 * xz_bytes / score["bytes"],
    "bayes_error": 100 * floor["bayes_error"],
    "probe_error": read("probe.json")["error"],
    "untrained_probe_error": read("untrained/probe.json")["error"],
    "seconds": seconds,
}
print(f"""
{train["parameters"]:,} parameters, {train["steps"]:,} updates in {train["seconds"]:.0f} s; {seconds} s in all

Reviews that the model writes:
{"".join(chr(10) + "  " + line.strip() for line in sample.splitlines() if line.strip())}

bits per byte      floor {floor["floor_bpc"]:7.4f}    smallworld {score["bpc"]:7.4f}    xz -9 {result["xz_bpc"]:7.4f}
probe error, %     Bayes {result["bayes_error"]:7.2f}    smallworld {result["probe_error"]:7.2f}    untrained {result["untrained_probe_error"]:3.2f}
""")
print(f"All of it on one page: {run / 'report.html'}")
missed = []
if not result["bpc"] <= 1.1 * result["floor_bpc"]:
    missed.append("bits per byte within 10 % of the floor")
if not result["probe_error"] <= result["bayes_error"] + 2:
    missed.append("probe error within 2 points of the Bayes error")
if not result["untrained_probe_error"] >= 1.5 * result["probe_error"]:
    missed.append("the untrained model's probe error at least 1.5 times the trained one's")
for target in missed:
    print("missed:", target)
if os.environ["JSON"] == "true":
    print(json.dumps(result))
sys.exit(1 if missed else 0)
END
