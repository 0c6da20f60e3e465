#!/usr/bin/env python3
"""Cuts photographs into images of 32 x 32 pixels: a set for pixelcnn.py where CIFAR-10 can't be had.

Each photograph is made smaller by 2 and by 4, and cut into squares side by side. All squares of a photograph
are for training, or all for the test, as a hash of its file says, so the test's photographs are new to the
model. Equal files give an equal set, whatever their names. From Debian's packages mate-backgrounds,
lomiri-wallpapers-16.04 and plasma-workspace-wallpapers, on Debian 12:

    cd /usr/share; patches.py --out ~/patches backgrounds/*.jpg backgrounds/mate/nature/*.jpg \\
        wallpapers/{BytheWater,ColdRipple,ColorfulCups,EveningGlow,FallenLeaf,Grey,Kite,OneStandsOut,Path,summer_1am}\\
        /contents/images/2560x1600.jpg
"""

import argparse
import hashlib
from pathlib import Path

import numpy
from PIL import Image

import data

SCALES = (2, 4)


def squares(path):
    """uint8 (squares, 3, 32, 32)"""
    try:
        photograph = Image.open(path).convert("RGB")
    except OSError as problem:
        raise data.BadInput(f"{path}: expected an image: {problem}") from None
    found = [numpy.empty((0, 3, data.SIDE, data.SIDE), numpy.uint8)]
    for scale in SCALES:
        rows, columns = (side // scale // data.SIDE for side in reversed(photograph.size))
        if rows and columns:
            box = (0, 0, columns * data.SIDE * scale, rows * data.SIDE * scale)
            small = photograph.resize((columns * data.SIDE, rows * data.SIDE), Image.BOX, box)
            grid = numpy.asarray(small).reshape(rows, data.SIDE, columns, data.SIDE, 3)
            found.append(grid.transpose(0, 2, 4, 1, 3).reshape(-1, 3, data.SIDE, data.SIDE))
    return numpy.concatenate(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", nargs="+", type=Path, metavar="PHOTOGRAPH")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--test", type=data.share, default=0.2, metavar="SHARE",
                        help="of the photographs (default: %(default)s)")
    arguments = parser.parse_args()

    found = {hashlib.sha256(path.read_bytes()).digest(): path for path in arguments.photographs}
    split = [[], []]
    for content, path in sorted(found.items()):
        split[int.from_bytes(content[:8], "big") < arguments.test * 2 ** 64].append(squares(path))
    if not all(split):
        raise data.BadInput(f"expected photographs for training and for the test, got {len(split[0])} "
                            f"and {len(split[1])}: give more, or another --test")
    train, test = map(numpy.concatenate, split)
    data.save(arguments.out, train, test)
    for name, photographs, images in ("train", split[0], train), ("test", split[1], test):
        print(f"{name}: {len(images):,} images from {len(photographs)} photographs")


if __name__ == "__main__":
    data.run(main)
