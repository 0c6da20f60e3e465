#!/usr/bin/env python3
"""Converts the published sentiment neuron (Radford, Jozefowicz, Sutskever 2017) to a checkpoint.

SOURCE is the folder `model` of https://github.com/openai/generating-reviews-discovering-sentiment,
which holds the arrays 0.npy ... 14.npy of a multiplicative LSTM with 4,096 units. Writes a dense
`mlstm` without layer norm, the weight norm folded into the weights. Needs NumPy.
"""

import argparse
import json
import os
import zlib
from pathlib import Path

import numpy

from prepare import BadInput, next_command, run

EXAMPLE = """example:
  git clone https://github.com/openai/generating-reviews-discovering-sentiment neuron
  scripts/import_sentiment_neuron.py neuron/model
  build/smallworld show neuron.safetensors --unit 2388 --text reviews.txt --out page.html
"""

# Of E features of a byte and H units: the arrays in the files' order. Products there are rows times
# matrices, x W, and gates stand in the order i f o u, as here.
NAMES = ["embedding", "wx", "wh.i", "wh.f", "wh.o", "wh.u", "wmx", "wmh", "b", "gx", "gh", "gmx", "gmh",
         "head.w", "head.b"]


def shapes(features, units):
    return dict(zip(NAMES, [(256, features), (features, 4 * units), *[(units, units)] * 4,
                            (features, units), (units, units), (4 * units,), (4 * units,),
                            (4 * units,), (units,), (units,), (units, 256), (256,)]))


def read(folder):
    """{name: float32 array}, all of the shapes that belong together."""
    arrays = {}
    for number, name in enumerate(NAMES):
        path = folder / f"{number}.npy"
        try:
            arrays[name] = numpy.load(path, allow_pickle=False)
        except (ValueError, EOFError) as problem:
            raise BadInput(f"{path}: no array: {problem}") from None
        if arrays[name].dtype.kind != "f":
            raise BadInput(f"{path}: expected floating-point numbers, found {arrays[name].dtype}")
        arrays[name] = arrays[name].astype(numpy.float32)
        if not numpy.isfinite(arrays[name]).all():
            raise BadInput(f"{path}: expected finite numbers")
    if arrays["embedding"].ndim != 2 or arrays["wmh"].ndim != 2:
        raise BadInput(f"{folder}: expected matrices in 0.npy and 7.npy")
    features, units = arrays["embedding"].shape[1], arrays["wmh"].shape[0]
    for number, (name, shape) in enumerate(shapes(features, units).items()):
        if arrays[name].shape != shape:
            raise BadInput(f"{folder / f'{number}.npy'}: expected shape {shape} ({name}), found "
                           f"{arrays[name].shape}")
    return arrays, features, units


def normed(weight, gain):
    """Weight norm (Salimans, Kingma 2016): columns of length 1, times the gain."""
    squares = numpy.sum(numpy.square(weight, dtype=numpy.float64), axis=0)
    return (weight / numpy.sqrt(numpy.maximum(squares, 1e-12)) * gain).astype(numpy.float32)


def convert(arrays, features, units, block):
    """{name: array} as in docs/checkpoint.md."""
    gates = lambda matrix: matrix.T.reshape(4, units, -1)  # (inputs, 4 units) -> [gate][unit][input]
    wx, wmx = normed(arrays["wx"], arrays["gx"]), normed(arrays["wmx"], arrays["gmx"])
    wh = normed(numpy.concatenate([arrays[f"wh.{gate}"] for gate in "ifou"], axis=1), arrays["gh"])
    nodes = units // block
    pattern = numpy.stack(numpy.divmod(numpy.arange(nodes * nodes), nodes), axis=1)
    return {
        "input.embedding": arrays["embedding"].T,
        "input.projection": numpy.concatenate([wmx.T[None], gates(wx)]),
        "cell.step0.weight": normed(arrays["wmh"], arrays["gmh"]).T[None],
        "cell.gates.weight": gates(wh)[None],
        "cell.gates.bias": arrays["b"].reshape(4, units),
        "head.weight": arrays["head.w"].T,
        "head.bias": arrays["head.b"],
        "pattern.step0": pattern.astype(numpy.int32),
        "pattern.gates": pattern.astype(numpy.int32),
    }


def metadata(features, units, block):
    """The original decodes HTML entities before it reads a text."""
    model = {"cell": "mlstm", "internal_steps": 2, "hidden": units, "block": block,
             "embedding": features, "graph": "dense", "degree": "null", "density": "null",
             "rewire": 0.1, "norm": "none", "input_stride": 1, "output_stride": 1,
             "dropout": 0, "init_noise": 0, "forget_bias": 1}
    return {"checksum": "00000000", "format": "smallworld", "version": "1", "kind": "model",
            "framing": "\\n TEXT ", "step": "0", "run.seed": "1", "data.html_entities": "true",
            **{f"model.{key}": str(value) for key, value in model.items()},
            "train.batch": "64", "train.bptt": "128"}


def write(path, tensors, entries):
    """A safetensors file whose checksum is the CRC-32 of itself with zeros in its place."""
    header, offset = {"__metadata__": entries}, 0
    for name, array in tensors.items():
        size = array.size * 4
        header[name] = {"dtype": "I32" if array.dtype == numpy.int32 else "F32",
                        "shape": list(array.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(", ", ": ")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    temporary = path.with_name(path.name + ".tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "wb") as file:
            file.write(head)
            checksum = zlib.crc32(head)
            for array in tensors.values():
                data = numpy.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
                checksum = zlib.crc32(data, checksum)
                file.write(data)
            file.seek(head.index(b'"checksum": "') + len(b'"checksum": "'))
            file.write(b"%08x" % checksum)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", type=Path)
    parser.add_argument("--out", metavar="FILE", type=Path, default=Path("neuron.safetensors"),
                        help="default: %(default)s")
    args = parser.parse_args()
    arrays, features, units = read(args.source)
    block = next((block for block in (32, 16, 8) if units % block == 0), 0)
    if not block:
        raise BadInput(f"{args.source / '7.npy'}: expected a multiple of 8 units, found {units}")
    write(args.out, convert(arrays, features, units, block), metadata(features, units, block))
    print(f"{args.out}: {units:,} units, {features} features of a byte")
    next_command(f"build/smallworld generate {args.out}")


if __name__ == "__main__":
    run(main)
