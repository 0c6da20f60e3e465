#!/usr/bin/env python3
"""Measures a training update of PyTorch's dense cuDNN LSTM with the parameters of a smallworld model.

    python3 scripts/peer_lstm.py --program build/smallworld configs/imdb-100m-hubs.yaml --batch 128

runs `smallworld bench train` on the config, then the peer with the same parameters (within 1 %),
streams and steps, with one layer and with two, on the same GPU, and prints one table. A second row
is the same model with weight norm, because cuDNN has no norm; --also asks for other rows instead.
Without --program it times the peer alone, with --parameters.

The peer's update: bytes from pinned memory, embedding of 64, LSTM, 256 logits, cross-entropy,
backward, gradient clipping by norm, fused Adam. Masters and moments are fp32; forward and backward
run on bf16 copies, made once an update, as bf16 autocast would (which runs cuDNN's LSTM in
fp16 instead). The state is carried from update to update. Times are medians over rounds, input
included, after a warm-up.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

VOCABULARY, EMBEDDING = 256, 64
CLIP, LEARNING_RATE = 1.0, 1e-3


# ------------------------------------------------------------------------------------- the model --

class Dense(nn.Module):
    """Bytes [T, B] to logits [T, B, 256]."""

    def __init__(self, hidden, layers):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, hidden, layers)
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, inputs, state):
        h, state = self.lstm(self.embedding(inputs), state)
        return self.head(h), state


def parameters_of(hidden, layers):
    """Trained scalars of Dense(hidden, layers)."""
    first = 4 * hidden * (EMBEDDING + hidden) + 8 * hidden
    other = 4 * hidden * 2 * hidden + 8 * hidden
    return VOCABULARY * (EMBEDDING + hidden + 1) + first + (layers - 1) * other


def hidden_for(parameters, layers):
    """The roundest width within 1 % of this number of parameters; cuDNN is faster with round widths."""
    for multiple in (128, 64, 32, 16, 8):
        widths = range(multiple, 1 << 17, multiple)
        width = min(widths, key=lambda hidden: abs(parameters_of(hidden, layers) - parameters))
        if abs(parameters_of(width, layers) / parameters - 1) <= 0.01:
            return width
    raise SystemExit(f"peer_lstm: no dense LSTM has {parameters} parameters within 1 %")


# ------------------------------------------------------------------------------------ the update --

class Peer:
    def __init__(self, hidden, layers, batch, steps):
        self.hidden, self.layers, self.batch, self.steps = hidden, layers, batch, steps
        torch.manual_seed(1)
        self.model = Dense(hidden, layers).cuda()
        self.masters = [p.detach().clone() for p in self.model.parameters()]
        for master in self.masters:
            master.grad = torch.empty_like(master)
        self.model.bfloat16()
        self.model.lstm.flatten_parameters()
        self.copies = [p for p in self.model.parameters()]
        self.optimiser = torch.optim.Adam(self.masters, lr=LEARNING_RATE, fused=True)
        self.texts = [torch.randint(0, 256, (steps + 1, batch), dtype=torch.uint8).pin_memory()
                      for _ in range(8)]
        self.count = 0
        self.zero_state()

    def zero_state(self):
        shape = (self.layers, self.batch, self.hidden)
        self.state = tuple(torch.zeros(shape, device="cuda", dtype=torch.bfloat16)
                           for _ in range(2))

    def loss(self):
        text = self.texts[self.count % len(self.texts)].cuda(non_blocking=True).long()
        self.count += 1
        logits, state = self.model(text[:-1], self.state)
        self.state = tuple(s.detach() for s in state)
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), text[1:].flatten())

    def update(self):
        with torch.no_grad():
            torch._foreach_copy_(self.copies, self.masters)
        self.model.zero_grad(set_to_none=True)
        self.loss().backward()
        with torch.no_grad():
            torch._foreach_copy_([m.grad for m in self.masters], [c.grad for c in self.copies])
        nn.utils.clip_grad_norm_(self.masters, CLIP, foreach=True)
        self.optimiser.step()

    def score(self):
        with torch.no_grad():
            return self.loss()


def time_of(function, seconds):
    """The median of rounds of about a quarter of a second."""
    def round_of(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            function()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / count

    round_of(3)
    each = round_of(2)
    count = max(1, round(0.25 / each))
    rounds = max(3, round(seconds / (count * each)))
    return statistics.median(round_of(count) for _ in range(rounds))


def measure(parameters, layers, batch, steps, seconds):
    hidden = hidden_for(parameters, layers)
    peer = Peer(hidden, layers, batch, steps)
    update = time_of(peer.update, seconds)
    if not torch.isfinite(peer.score()):
        raise SystemExit(f"peer_lstm: the loss of {layers} x {hidden} is not finite")
    score = time_of(peer.score, seconds / 2)
    return {
        "model": f"cuDNN LSTM, {layers} x {hidden}",
        "units": layers * hidden,
        "parameters": parameters_of(hidden, layers),
        "ms_per_update": update * 1e3,
        "bytes_per_second": batch * steps / update,
        "forward_bytes_per_second": batch * steps / score,
    }


# -------------------------------------------------------------------------------------- the table --

def smallworld(options, more=()):
    """The results of `smallworld bench train` with more assignments."""
    command = [options.program, "bench", "train", options.config, "--device", "cuda", "--json",
               "--seconds", str(3 * options.seconds)]
    assignments = [*options.set, *more]
    if options.batch:
        assignments.append(f"train.batch={options.batch}")
    if options.steps:
        assignments.append(f"train.bptt={options.steps}")
    for assignment in assignments:
        command += ["--set", assignment]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise SystemExit(f"peer_lstm: {' '.join(command)} failed")
    found = json.loads(result.stdout)
    found["units"] = found["hidden"]
    return found


def name_of(row):
    """Names our model, leaving out what has a column or is equal in all rows."""
    if "device" not in row:
        return row["model"]
    kept = [part for part in row["model"].split(", ")
            if not re.match(r"[\d.e+]+ (units|M parameters)|[BT] = ", part)]
    return ", ".join(kept)


def print_table(rows, best, out):
    print(f"{'':54} {'units':>7} {'parameters':>11} {'ms/update':>10} {'bytes/s':>10} "
          f"{'scoring':>10} {'TFLOP/s':>8} {'ratio':>6} {'scoring':>7}", file=out)
    for row in rows:
        tflops = 6e-12 * row["parameters"] * row["bytes_per_second"]
        ratios = [row[key] / best[key] for key in ("bytes_per_second", "forward_bytes_per_second")]
        print(f"{name_of(row):54} {row['units']:7} {row['parameters']:11} {row['ms_per_update']:10.2f} "
              f"{row['bytes_per_second']:10.0f} {row['forward_bytes_per_second']:10.0f} "
              f"{tflops:8.1f} {ratios[0]:6.2f} {ratios[1]:7.2f}", file=out)
    print("ratios are to the faster dense LSTM, in updates and in scoring each", file=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("config", nargs="?", help="the smallworld model's config")
    parser.add_argument("--program", help="the smallworld program; without it, only the peer is timed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE",
                        help="override a key of the config; may be repeated")
    parser.add_argument("--also", action="append", metavar="KEY.PATH=VALUE,...",
                        help="add a row with these keys; may be repeated; default: "
                             "model.norm=weight")
    parser.add_argument("--batch", type=int, help="streams; default: the config's, or 128")
    parser.add_argument("--steps", type=int, help="bytes of a stream; default: likewise")
    parser.add_argument("--parameters", type=float, default=1e8, help="number of parameters without --program")
    parser.add_argument("--seconds", type=float, default=5, help="measuring time of each model")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout at the end")
    options = parser.parse_args()
    if bool(options.program) != bool(options.config):
        parser.error("--program and a config go together")
    if not torch.cuda.is_available():
        raise SystemExit("peer_lstm: no GPU found")

    rows, parameters = [], options.parameters
    batch, steps = options.batch or 128, options.steps or 128
    if options.program:
        found = smallworld(options)
        rows.append(found)
        parameters, batch, steps = found["parameters"], found["batch"], found["bptt"]
        for more in options.also or ["model.norm=weight"]:
            rows.append(smallworld(options, more.split(",")))
    peers = []
    for layers in (1, 2):
        peers.append(measure(parameters, layers, batch, steps, options.seconds))
        torch.cuda.empty_cache()
    best = {key: max(peer[key] for peer in peers)
            for key in ("bytes_per_second", "forward_bytes_per_second")}
    out = sys.stderr if options.json else sys.stdout
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}; B = {batch}, T = {steps}", file=out)
    print_table(rows + peers, best, out)
    if options.json:
        result = {"batch": batch, "steps": steps, "peers": peers}
        if rows:
            result["smallworld"], result["also"] = rows[0], rows[1:]
            result["ratio"] = rows[0]["bytes_per_second"] / best["bytes_per_second"]
            result["forward_ratio"] = (rows[0]["forward_bytes_per_second"] /
                                       best["forward_bytes_per_second"])
        print(json.dumps(result))


if __name__ == "__main__":
    main()
