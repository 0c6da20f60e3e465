"""PixelCNN++ (Salimans, Karpathy, Chen and Kingma 2017), whose convolutions are dense or block-sparse.

A dense model's activations are PyTorch's (images, features, rows, columns), channels last in memory, and its
convolutions cuDNN's. A sparse model's are smallworld's (rows, columns, features, images), and its convolutions
have blocks of features only where a mask of its own says so. What stands between convolutions does not mind the
order.
"""

import math
import sys
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.nn import functional

try:
    from smallworld.torch import block_sparse, conv_shape
except ImportError:  # not installed: from this checkout
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
    from smallworld.torch import block_sparse, conv_shape

MIXTURES = 10
OUTPUTS = 10 * MIXTURES  # for each mixture: its logit, and of three colours mean, log scale and coefficient
FILTERS = {  # name: (rows, columns), ((zeros above, below), (zeros left, right))
    "down": ((2, 3), ((1, 0), (1, 1))),        # reads the row above and its own
    "right": ((2, 2), ((1, 0), (1, 0))),       # reads what is above and to the left
    "one": ((1, 1), ((0, 0), (0, 0))),
}
ABOVE = (2, 3), ((2, -1), (1, 1))              # of the first layer: the two rows above a pixel,
AHEAD = (1, 3), ((1, -1), (1, 1))              # the row above,
LEFT = (2, 1), ((1, 0), (1, -1))               # and the pixels to the left and above that


# ------------------------------------------------------------------------------- convolutions --


class Normalised(nn.Module):
    """A convolution with weight normalisation: w = gain * v / |v| for each output feature. In the pass before
    training, of `initialise`, gain and bias are set so that its outputs have mean 0 and deviation `scale`."""

    def __init__(self, v_shape, outputs, scale):
        super().__init__()
        self.v = nn.Parameter(torch.randn(v_shape) * 0.05)
        self.gain, self.bias = nn.Parameter(torch.ones(outputs)), nn.Parameter(torch.zeros(outputs))
        self.scale, self.initialising = scale, False

    def along(self, vector, x):
        """A vector of features as x takes it."""
        return vector.to(x.dtype).view([-1 if i == self.axis else 1 for i in range(4)])

    def forward(self, x):
        return sum(self.parts(x))

    def parts(self, x):
        """The result without its bias, and the bias as it is added."""
        y = self.multiply(self.normalised(), x)
        if self.initialising:
            with torch.no_grad():
                others = [i for i in range(4) if i != self.axis]
                mean, deviation = y.float().mean(others), y.float().std(others)
                self.gain.copy_(self.scale / (deviation + 1e-5))
                self.bias.copy_(-mean * self.gain)
                y = y * self.along(self.gain, y)
        return y, self.along(self.bias, y)


class Dense(Normalised):
    axis = 1

    def __init__(self, inputs, outputs, size, filter, pad, stride=1, transposed=False, scale=1.0):
        super().__init__(((inputs, outputs) if transposed else (outputs, inputs)) + filter, outputs, scale)
        self.size, self.pad, self.stride, self.transposed = size, pad, stride, transposed

    def normalised(self):
        over = [0, 2, 3] if self.transposed else [1, 2, 3]
        shape = (1, -1, 1, 1) if self.transposed else (-1, 1, 1, 1)
        return self.v * (self.gain * self.v.square().sum(over).rsqrt()).view(shape)

    def multiply(self, w, x):
        w, ((above, below), (left, right)) = w.to(x.dtype), self.pad
        if self.transposed:
            y = functional.conv_transpose2d(x, w, stride=self.stride)
            return y[:, :, above:above + self.size[0], left:left + self.size[1]]
        return functional.conv2d(functional.pad(x, (left, right, above, below)), w, stride=self.stride)


class Sparse(Normalised):
    """mask: (output nodes, input nodes) of features, each row with as many blocks, and each column; if
    transposed its transpose is what is multiplied by, and inputs are the mask's rows."""
    axis = 2

    def __init__(self, mask, block, size, filter, pad, stride=1, transposed=False, scale=1.0):
        blocks = torch.from_numpy(numpy.argwhere(mask).astype(numpy.int32))
        side = 1 if transposed else 0
        super().__init__((len(blocks), *filter, block, block), mask.shape[side] * block, scale)
        self.shape, self.transposed = conv_shape(mask.shape, block, size, filter, stride, padding=pad), transposed
        node = blocks[:, side].long()
        self.register_buffer("blocks", blocks)
        self.register_buffer("node", node)                                      # of each block
        self.register_buffer("order", torch.argsort(node, stable=True).view(-1, numpy.count_nonzero(node == 0)))

    def normalised(self):
        own = 3 if self.transposed else 4  # the dimension over which a feature of the output sums
        squares = self.v.square().sum((1, 2, own))[self.order].sum(1)
        factor = self.gain * squares.view(-1).rsqrt()
        factor = factor.view(-1, self.v.shape[-1])[self.node]
        return self.v * factor.view(len(factor), 1, 1, *((1, -1) if self.transposed else (-1, 1)))

    def multiply(self, w, x):
        return block_sparse(w, x, self.blocks, self.shape, self.transposed)


def small_world(nodes, degree, random):
    """A mask in which every node reads `degree` nodes and is read by as many: itself, half of the others its
    neighbours on a ring, half at random."""
    mask = numpy.eye(nodes, dtype=bool)
    if degree >= nodes:
        return numpy.ones((nodes, nodes), bool)
    for i in range((degree - 1) // 2):
        mask |= numpy.roll(numpy.eye(nodes, dtype=bool), i // 2 + 1 if i % 2 else -(i // 2) - 1, axis=1)
    free = ~mask  # each node is read as often as it reads, so free places always hold a permutation
    while mask[0].sum() < degree:
        mask[numpy.arange(nodes), _permutation(free, random)] = True
        free = ~mask
    return mask


def _permutation(free, random):
    """A random permutation on the free places, by augmenting paths."""
    reader = [-1] * len(free)

    def assign(node, seen):
        for other in random.permutation(numpy.flatnonzero(free[node])):
            if other not in seen:
                seen.add(other)
                if reader[other] < 0 or assign(reader[other], seen):
                    reader[other] = node
                    return True
        return False

    for node in random.permutation(len(free)):
        assign(int(node), set())
    chosen = numpy.empty(len(free), int)
    chosen[reader] = numpy.arange(len(free))
    return chosen


# -------------------------------------------------------------------------------------- model --


def concat_elu(x, axis):
    return functional.elu(torch.cat([x, -x], axis))


def dropped(axis, rate, training, *parts):
    return functional.dropout(concat_elu(sum(parts), axis), rate, training)


def gated(axis, x, y, bias):
    a, b = (y + bias).chunk(2, axis)
    return x + a * torch.sigmoid(b)


FUSED = {}  # by name, what torch.compile made of these for training on a GPU


def fused(function):
    return FUSED.get(function.__name__, function) if torch.is_grad_enabled() else function


class Residual(nn.Module):
    """x + a * sigmoid(b), where a and b are made of x and, with `more` features, of another stream."""

    def __init__(self, model, name, size, more=0):
        super().__init__()
        width = model.features
        self.axis, self.rate = model.axis, model.dropout
        self.first = model.conv(2 * width, width, size, name)
        self.skip = model.conv(2 * more, width, size, "one") if more else None
        self.second = model.conv(2 * width, 2 * width, size, name, scale=0.1)

    def forward(self, x, other=None):
        parts = self.first.parts(fused(concat_elu)(x, self.axis))
        if self.skip is not None:
            parts += self.skip.parts(fused(concat_elu)(other, self.axis))
        y = fused(dropped)(self.axis, self.rate, self.training, *parts)
        return fused(gated)(self.axis, x, *self.second.parts(y))


class PixelCNN(nn.Module):
    """Images in [-1, 1], (images, 3, side, side), to float32 (images, side, side, OUTPUTS).

    kind: "dense" or "sparse"; features of each stream; density and block of a sparse model's masks; residuals
    a level and direction. Two streams go down three levels and up again: one sees the rows above a pixel, the
    other also what is to its left.
    """

    def __init__(self, kind="sparse", features=256, density=0.25, block=32, residuals=3, dropout=0.5, seed=1,
                 side=32, device="cpu", precision=None):
        super().__init__()
        torch.manual_seed(seed)
        self.kind, self.features, self.dropout, self.block = kind, features, dropout, block
        self.axis = 2 if kind == "sparse" else 1
        self.random, self.nodes = numpy.random.default_rng(seed), features // block
        self.degree = max(1, round(density * self.nodes))
        self.type = torch.bfloat16 if precision == "bf16" else torch.float32

        level = lambda k: (side >> k, side >> k)
        stack = lambda k, name, more, count: nn.ModuleList(
            Residual(self, name, level(k), more * features) for _ in range(count))
        half = lambda k, name, transposed: self.conv(features, features, level(k), name, 2, transposed)
        self.above, self.ahead, self.left = (Dense(4, features, level(0), *shape) for shape in (ABOVE, AHEAD, LEFT))
        self.down = nn.ModuleList(stack(k, "down", 0, residuals) for k in range(3))
        self.down_left = nn.ModuleList(stack(k, "right", 1, residuals) for k in range(3))
        self.smaller = nn.ModuleList(half(k, "down", False) for k in range(2))
        self.smaller_left = nn.ModuleList(half(k, "right", False) for k in range(2))
        self.up = nn.ModuleList(stack(k, "down", 1, residuals + (k < 2)) for k in range(3))
        self.up_left = nn.ModuleList(stack(k, "right", 2, residuals + (k < 2)) for k in range(3))
        self.larger = nn.ModuleList(half(k, "down", True) for k in range(2))
        self.larger_left = nn.ModuleList(half(k, "right", True) for k in range(2))
        self.out = Dense(features, OUTPUTS, level(0), *FILTERS["one"])
        self.to(device)

    def conv(self, inputs, outputs, size, name, stride=1, transposed=False, scale=1.0):
        """A convolution of this model's kind. A transposed one makes `size` of half of it."""
        filter, pad = FILTERS[name]
        if transposed:
            pad = ((0, 0), (1, 0)) if name == "down" else ((0, 0), (0, 0))
        if self.kind == "dense":
            return Dense(inputs, outputs, size, filter, pad, stride, transposed, scale)
        of = lambda features: features // self.features
        rows, columns = (inputs, outputs) if transposed else (outputs, inputs)
        mask = numpy.tile(small_world(self.nodes, self.degree, self.random), (of(rows), of(columns)))
        return Sparse(mask, self.block, size, filter, pad, stride, transposed, scale)

    def forward(self, images):
        x = functional.pad(images, (0, 0, 0, 0, 0, 1), value=1.0)  # a fourth colour of ones
        x = x.to(self.type, memory_format=torch.channels_last)
        inner = (lambda y: y.permute(2, 3, 1, 0).contiguous()) if self.kind == "sparse" else (lambda y: y)
        stream, left = inner(self.above(x)), inner(self.ahead(x) + self.left(x))
        streams, lefts = [stream], [left]
        for k in range(3):
            for residual, residual_left in zip(self.down[k], self.down_left[k]):
                stream = residual(stream)
                left = residual_left(left, stream)
                streams.append(stream), lefts.append(left)
            if k < 2:
                stream, left = self.smaller[k](stream), self.smaller_left[k](left)
                streams.append(stream), lefts.append(left)
        stream, left = streams.pop(), lefts.pop()
        for k in reversed(range(3)):
            for residual, residual_left in zip(self.up[k], self.up_left[k]):
                stream = residual(stream, streams.pop())
                left = residual_left(left, torch.cat([stream, lefts.pop()], self.axis))
            if k:
                stream, left = self.larger[k - 1](stream), self.larger_left[k - 1](left)
        assert not streams and not lefts
        left = functional.elu(left)
        left = left.permute(3, 2, 0, 1) if self.kind == "sparse" else left
        return self.out(left).permute(0, 2, 3, 1).float()

    @torch.no_grad()
    def initialise(self, images):
        """Sets gains and biases by a pass over images."""
        layers = [layer for layer in self.modules() if isinstance(layer, Normalised)]
        for layer in layers:
            layer.initialising = True
        self.train()(images)
        for layer in layers:
            layer.initialising = False


# --------------------------------------------------------------------------------------- loss --


def _mixture(outputs, red_green):
    """logits (..., mixtures), means and log scales (..., mixtures, 3); each colour's mean moves with the values
    (..., 3) of those before it."""
    logits, rest = outputs[..., :MIXTURES], outputs[..., MIXTURES:].unflatten(-1, (MIXTURES, 9))
    means, scales, factors = rest[..., :3], rest[..., 3:6].clamp(min=-7.0), torch.tanh(rest[..., 6:])
    red, green = red_green[..., None, 0], red_green[..., None, 1]
    means = torch.stack([means[..., 0], means[..., 1] + factors[..., 0] * red,
                         means[..., 2] + factors[..., 1] * red + factors[..., 2] * green], -1)
    return logits, means, scales


def bits(outputs, images):
    """(images,): bits per dimension under the mixture of discretised logistics."""
    values = images.permute(0, 2, 3, 1)
    logits, means, scales = _mixture(outputs, values)
    values = values[..., None, :]
    inverse = torch.exp(-scales)
    plus, minus = inverse * (values - means + 1 / 255), inverse * (values - means - 1 / 255)
    within = torch.sigmoid(plus) - torch.sigmoid(minus)
    middle = inverse * (values - means)
    narrow = middle - scales - 2 * functional.softplus(middle) - math.log(127.5)  # the density, where a step is tiny
    inner = torch.where(within > 1e-5, torch.log(within.clamp(min=1e-12)), narrow)
    of_colours = torch.where(values < -0.999, functional.logsigmoid(plus),
                             torch.where(values > 0.999, -functional.softplus(minus), inner))
    of_pixels = torch.logsumexp(of_colours.sum(-1) + functional.log_softmax(logits, -1), -1)
    return -of_pixels.sum((1, 2)) / (math.log(2) * values[0].numel())


def draw(outputs, generator):
    """Colours (..., 3) in [-1, 1] drawn from outputs (..., OUTPUTS)."""
    uniform = lambda *shape: torch.rand(*shape, generator=generator, device=outputs.device) * (1 - 2e-5) + 1e-5
    chosen = (outputs[..., :MIXTURES] - torch.log(-torch.log(uniform(*outputs.shape[:-1], MIXTURES)))).argmax(-1)
    noise, colours = uniform(*outputs.shape[:-1], 3), torch.zeros(*outputs.shape[:-1], 3, device=outputs.device)
    noise = torch.log(noise) - torch.log1p(-noise)
    for k in range(3):
        _, means, scales = _mixture(outputs, colours)
        mean, scale = (t[..., k].gather(-1, chosen[..., None])[..., 0] for t in (means, scales))
        colours[..., k] = (mean + torch.exp(scale) * noise[..., k]).clamp(-1, 1)
    return colours
