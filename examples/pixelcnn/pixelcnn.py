#!/usr/bin/env python3
"""Trains PixelCNN++ with dense or block-sparse convolutions, scores it and draws images from it.

    pixelcnn.py train DATA --out RUN --model sparse --features 256 --density 0.25
    pixelcnn.py eval RUN DATA
    pixelcnn.py sample RUN --out samples.png

DATA is cifar-10-binary.tar.gz, or a folder in its format such as patches.py makes. RUN gets last.pt, the
checkpoint, and log.jsonl. The same command with --resume goes on where a run stopped, to the same bits.
"""

import argparse
import dataclasses
import json
import math
import os
import time
from pathlib import Path

import numpy
import torch

import data
import model as models

BETAS, EPSILON, DECAY = (0.95, 0.9995), 1e-8, 0.999995  # as published


@dataclasses.dataclass
class Options:
    """What makes a run: with the data, equal options give equal weights."""
    model: str = "sparse"
    features: int = 256
    density: float = 0.25
    block: int = 32
    residuals: int = 3
    dropout: float = 0.5
    batch: int = 64
    updates: int = 10000
    lr: float = 0.001
    schedule: str = "constant"
    average: float = 0.9995
    seed: int = 1


HELP = {"model": "dense or sparse", "features": "of a stream", "density": "of a sparse model's masks",
        "residuals": "residual layers a level and direction (published: 5)",
        "schedule": "constant, as published, or linear decay to 0 at the last update",
        "average": "decay of the average of weights that is scored; smaller in the first updates"}
CHOICES = {"model": ["dense", "sparse"], "schedule": ["constant", "linear"]}


class Trainer:
    """A model whose parameters lie in one vector, beside Adam's moments and the average of weights."""

    def __init__(self, options, device):
        self.options, self.device, self.update, self.seconds = options, device, 0, 0.0  # seconds of training
        if options.model == "sparse" and options.features % options.block:
            raise data.BadInput(f"--features: expected a multiple of {options.block}, got {options.features}")
        if device == "cuda":
            torch.backends.cudnn.benchmark = True
        self.model = models.PixelCNN(
            options.model, options.features, options.density, options.block, options.residuals, options.dropout,
            options.seed, data.SIDE, device, "bf16" if device == "cuda" else None)
        parameters = list(self.model.parameters())
        self.weights = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.gradient = torch.zeros_like(self.weights)
        start = 0
        for p in parameters:
            p.data, p.grad = (vector[start:start + p.numel()].view_as(p) for vector in (self.weights, self.gradient))
            start += p.numel()
        self.moments = [torch.zeros_like(self.weights) for _ in range(2)]
        self.average = self.weights.clone()
        self.images = torch.zeros(options.batch, 3, data.SIDE, data.SIDE, device=device)
        self.rates = torch.zeros(3, device=device)  # of this update: see step
        self.bits = torch.zeros((), device=device)  # summed since the last line of the log
        self.graph = None

    def state(self):
        return {"weights": self.weights, "first": self.moments[0], "second": self.moments[1], "average": self.average}

    def begin(self, images):
        self.model.initialise(images)
        self.average.copy_(self.weights)

    def compute(self):
        """One update, from self.images; nothing in it waits for the GPU."""
        self.gradient.zero_()
        loss = models.bits(self.model(self.images), self.images).mean()
        loss.backward()
        first, second = self.moments
        first.lerp_(self.gradient, 1 - BETAS[0])
        second.lerp_(self.gradient.square(), 1 - BETAS[1])
        self.weights.sub_(self.rates[0] * first / ((second * self.rates[1]).sqrt() + EPSILON))
        self.average.lerp_(self.weights, self.rates[2])
        self.bits += loss.detach()

    def capture(self):
        """Records an update as a CUDA graph, so that a step costs the host one launch."""
        torch._dynamo.config.cache_size_limit = 64  # of each function, one for each shape
        for function in models.concat_elu, models.dropped, models.gated:
            models.FUSED.setdefault(function.__name__, torch.compile(function, dynamic=False))
        kept = [tensor.clone() for tensor in self.state().values()]
        self.model.train()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.compute()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.compute()
        for tensor, old in zip(self.state().values(), kept):
            tensor.copy_(old)
        self.bits.zero_()

    def step(self, images):
        self.update += 1
        update, options = self.update, self.options
        rate = options.lr * (DECAY ** update if options.schedule == "constant" else 1 - (update - 1) / options.updates)
        self.rates.copy_(torch.tensor([rate / (1 - BETAS[0] ** update), 1 / (1 - BETAS[1] ** update),
                                       1 - min(options.average, (1 + update) / (10 + update))]))
        self.images.copy_(images)
        torch.manual_seed((options.seed << 32) + update)  # of dropout: a resumed run draws the same
        if self.graph:
            self.graph.replay()
        else:
            self.model.train()
            self.compute()

    @torch.no_grad()
    def score(self, images):
        """(images,) bits per dimension of each by the average weights."""
        self.swap()
        self.model.eval()
        found = []
        for start in range(0, len(images), self.options.batch):
            part = images[start:start + self.options.batch]
            full = torch.zeros_like(self.images, dtype=torch.uint8)
            full[:len(part)] = torch.from_numpy(part).to(self.device)
            full = scaled(full)
            found.append(models.bits(self.model(full), full)[:len(part)])
        self.swap()
        return torch.cat(found).double().cpu().numpy()

    def swap(self):
        kept = self.weights.clone()
        self.weights.copy_(self.average)
        self.average.copy_(kept)

    def save(self, path):
        said = {"options": dataclasses.asdict(self.options), "update": self.update, "seconds": self.seconds}
        part = path.with_suffix(".part")
        torch.save({"said": json.dumps(said), **self.state()}, part)
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        part.replace(path)

    def restore(self, path, state):
        self.update, self.seconds = state["update"], state["seconds"]
        for name, tensor in self.state().items():
            if state[name].shape != tensor.shape:
                raise data.BadInput(f"{path}: expected {tensor.numel()} {name}, got {state[name].numel()}")
            tensor.copy_(state[name])


def read(path):
    """The tensors and what else was saved."""
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {**tensors, **json.loads(tensors["said"])}
    except FileNotFoundError:
        raise data.BadInput(f"{path}: no checkpoint there") from None
    except Exception as problem:
        raise data.BadInput(f"{path}: expected a checkpoint of pixelcnn.py: {problem}") from None


def opened(run, device):
    """The trainer of a run, at its last checkpoint."""
    path = run / "last.pt"
    state = read(path)
    trainer = Trainer(Options(**state["options"]), device)
    trainer.restore(path, state)
    return trainer


def scaled(images):
    return images.float() / 127.5 - 1


def mean_and_error(bits):
    return bits.mean(), bits.std(ddof=1) / math.sqrt(len(bits))


def order_of(count, options, epoch):
    """The order of an epoch's images."""
    return torch.from_numpy(numpy.random.default_rng([options.seed, epoch]).permutation(count))


def train(arguments):
    options = Options(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Options)})
    run, device = arguments.out, arguments.device
    path = run / "last.pt"
    images, test = data.load(arguments.data)
    if len(images) < options.batch:
        raise data.BadInput(f"{arguments.data}: expected {options.batch} images for a batch, got {len(images)}")
    test = test[:arguments.test_images]
    if arguments.resume:
        trainer = opened(run, device)
        if dataclasses.replace(trainer.options, updates=options.updates) != options:
            raise data.BadInput(f"--resume: {path} was made by other options: {trainer.options}")
        trainer.options = options  # a longer run may go on
        lines = (run / "log.jsonl").read_text().splitlines(True)  # of updates that were lost, none
        (run / "log.jsonl").write_text("".join(x for x in lines if json.loads(x)["update"] <= trainer.update))
    else:
        if path.exists():
            raise data.BadInput(f"{path}: there is a run already: --resume goes on with it")
        run.mkdir(parents=True, exist_ok=True)
        trainer = Trainer(options, device)
        trainer.begin(scaled(torch.from_numpy(images[order_of(len(images), options, 0)[:options.batch]]).to(device)))
    images = torch.from_numpy(images).to(device)
    print(f"{options.model} PixelCNN++, {trainer.weights.numel():,} parameters, {len(images):,} images, {device}")
    if device == "cuda":
        trainer.capture()

    first, seconds, begun, since, epoch = trainer.update, trainer.seconds, time.monotonic(), trainer.update, -1
    each = len(images) // options.batch
    with open(run / "log.jsonl", "a") as log:
        while trainer.update < options.updates:
            if trainer.update // each != epoch:
                epoch = trainer.update // each
                order = order_of(len(images), options, epoch).to(device)
            place = trainer.update % each
            trainer.step(scaled(images[order[place * options.batch:(place + 1) * options.batch]]))
            last = trainer.update == options.updates
            scores = last or trainer.update % arguments.eval_every == 0
            if scores or trainer.update % arguments.log_every == 0:
                bits = trainer.bits.item() / (trainer.update - since)
                trainer.bits.zero_()
                since, now = trainer.update, time.monotonic()
                trainer.seconds = seconds + now - begun
                if not math.isfinite(bits):
                    raise data.BadInput(f"update {trainer.update}: the loss is not finite; {path} has earlier weights")
                rate = (trainer.update - first) / (now - begun)
                line = {"update": trainer.update, "seconds": round(trainer.seconds, 3), "train_bpd": round(bits, 5)}
                text = f"update {trainer.update:,} of {options.updates:,}  train {bits:.4f} bits per dimension  " \
                       f"{rate * options.batch:,.0f} images/s  ETA {(options.updates - trainer.update) / rate:,.0f} s"
                if scores:
                    line["test_bpd"], line["error"] = mean_and_error(trainer.score(test))
                    text += f"  test {line['test_bpd']:.4f} +- {line['error']:.4f}"
                    trainer.save(path)
                    begun += time.monotonic() - now  # scoring is not training
                print(text, flush=True)
                log.write(json.dumps(line) + "\n")
                log.flush()


def evaluate(arguments):
    trainer = opened(arguments.run, arguments.device)
    mean, error = mean_and_error(trainer.score(data.load(arguments.data)[1]))
    print(f"{mean:.4f} +- {error:.4f} bits per dimension")


@torch.no_grad()
def sample(arguments):
    from PIL import Image

    trainer = opened(arguments.run, arguments.device)
    trainer.swap()
    trainer.model.eval()
    generator = torch.Generator(arguments.device).manual_seed(arguments.seed)
    images = trainer.images  # grows pixel by pixel
    for row in range(data.SIDE):
        for column in range(data.SIDE):
            outputs = trainer.model(images)[:, row, column]
            images[:, :, row, column] = models.draw(outputs, generator)
    pixels = ((images + 1) * 127.5).round().byte().cpu().numpy()
    across = math.ceil(math.sqrt(len(pixels)))
    page = numpy.zeros((math.ceil(len(pixels) / across), across, 3, data.SIDE, data.SIDE), numpy.uint8)
    page.reshape(-1, 3, data.SIDE, data.SIDE)[:len(pixels)] = pixels
    page = page.transpose(0, 3, 1, 4, 2).reshape(page.shape[0] * data.SIDE, across * data.SIDE, 3)
    Image.fromarray(page).resize((page.shape[1] * 2, page.shape[0] * 2), Image.NEAREST).save(arguments.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--device", choices=["cpu", "cuda"], default=device, help="default: %(default)s")

    command = commands.add_parser("train", parents=[common], help="train a model")
    command.add_argument("data", metavar="DATA", type=Path)
    command.add_argument("--out", required=True, metavar="RUN", type=Path)
    command.add_argument("--resume", action="store_true", help="go on with the run in RUN")
    for field in dataclasses.fields(Options):
        command.add_argument(f"--{field.name}", type=field.type, default=field.default,
                             choices=CHOICES.get(field.name),
                             help=f"{HELP.get(field.name, '')} (default: %(default)s)")
    command.add_argument("--log-every", type=int, default=100, metavar="UPDATES")
    command.add_argument("--eval-every", type=int, default=1000, metavar="UPDATES",
                         help="score the test and write the checkpoint (default: %(default)s)")
    command.add_argument("--test-images", type=int, metavar="N", help="score so many of them; default: all")
    command.set_defaults(function=train)

    command = commands.add_parser("eval", parents=[common], help="bits per dimension of the test")
    command.add_argument("run", metavar="RUN", type=Path)
    command.add_argument("data", metavar="DATA", type=Path)
    command.set_defaults(function=evaluate)

    command = commands.add_parser("sample", parents=[common], help="a page of images drawn from the model")
    command.add_argument("run", metavar="RUN", type=Path)
    command.add_argument("--out", required=True, metavar="FILE.png", type=Path)
    command.add_argument("--seed", type=int, default=1)
    command.set_defaults(function=sample)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    data.run(main)
