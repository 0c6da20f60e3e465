#!/usr/bin/env python3
"""Times FlashRNN's LSTM layers and the same layers of smallworld on one GPU.

    PYTHONPATH=flashrnn python3 scripts/peer_flashrnn.py --program build/smallworld

FlashRNN (github.com/NX-AI/flashrnn) multiplies h by a block-diagonal matrix with a block for each head; ours
has a graph with these blocks. Its kernels are given their inputs and gradients in the order in which they
use them, and the sums W x ready-made; ours has the embedding besides. Backward includes the gradient of
the recurrent weights. All in bf16, without layer norm. FlashRNN compiles each shape first: a minute or more.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile

BACKENDS = {  # orders of W x, R, the biases and the states
    "cuda_fused": ("TBHDG", "HDGP", "HDG", "STBHD"),
    "cuda": ("TBHGD", "HPGD", "HGD", "STBHD"),
    "triton_fused": ("BTGHD", "GHDP", "GHD", "TSBHD"),
}


def ours(options, heads, batch):
    """Milliseconds of forward, and of both directions, by `bench train`."""
    import numpy

    block = min(options.units // heads, 128)
    nodes = options.units // block
    same = numpy.arange(nodes) * block // (options.units // heads)
    with tempfile.TemporaryDirectory() as folder:
        numpy.save(f"{folder}/heads.npy", same[:, None] == same[None])
        with open(f"{folder}/config.yaml", "w") as file:
            graph = "dense" if heads == 1 else f"file, graph_file: {folder}/heads.npy"
            file.write(f"data: {{train: none.txt}}\n"
                       f"model: {{hidden: {options.units}, block: {block}, norm: none, graph: {graph}}}\n"
                       f"train: {{batch: {batch}, bptt: {options.steps}}}\n")
        command = [options.program, "bench", "train", f"{folder}/config.yaml", "--device", "cuda", "--json",
                   "--seconds", str(3 * options.seconds)]
        parts = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["parts_ms"]
    return parts["forward"], parts["forward"] + parts["backward"] + parts["weight_gradient"]


def theirs(queue, gpu, options, backend, heads, batch):
    """Puts (backend, heads, batch, milliseconds of forward, of both directions or what went wrong)."""
    os.environ["TORCH_EXTENSIONS_DIR"] = f"{options.builds}/{backend}-{heads}-{batch}"
    os.makedirs(os.environ["TORCH_EXTENSIONS_DIR"], exist_ok=True)
    os.dup2(os.open(os.environ["TORCH_EXTENSIONS_DIR"] + "/log", os.O_WRONLY | os.O_CREAT), 1)
    try:
        import torch
        from flashrnn import FlashRNNConfig, flashrnn
        from peer_lstm import time_of

        device = torch.cuda.get_device_properties(0)  # FlashRNN's own query does not compile with CUDA 13
        sys.modules["flashrnn.flashrnn.flashrnn"].get_gpu_info = lambda device_id: {
            "maxThreadsPerBlock": 1024,
            "regsPerMultiprocessor": device.regs_per_multiprocessor,
            "multiProcessorCount": device.multi_processor_count,
            "sharedMemPerBlockOptin": device.shared_memory_per_block_optin,
        }
        orders = BACKENDS[backend]
        config = FlashRNNConfig(
            hidden_dim=options.units, num_heads=heads, batch_size=batch, backend=backend,
            **dict(zip(("input_shape", "recurrent_shape", "bias_shape", "output_shape"), orders)))
        size = dict(B=batch, T=options.steps, G=4, H=heads, D=options.units // heads, S=2)
        size["P"] = size["D"]

        def tensor(order, **other):
            shape = [{**size, **other}[name] for name in order]
            return (torch.randn(shape, device="cuda") / 8).bfloat16().requires_grad_()

        inputs = [tensor(order) for order in orders[:3]]
        first = tensor(orders[3], T=1)
        gradient = tensor(orders[3]).detach()

        def forward():
            return flashrnn(*inputs, states=first, config=config)[0]

        def both():
            torch.autograd.grad(forward(), inputs, gradient)

        both()  # compiles
        with gpu:
            times = [1e3 * time_of(function, options.seconds) for function in (forward, both)]
        queue.put((backend, heads, batch, *times))
    except Exception as problem:
        queue.put((backend, heads, batch, None, str(problem).strip().split("\n")[-1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", required=True, help="the smallworld program")
    parser.add_argument("--units", type=int, default=768, help="units of the layer")
    parser.add_argument("--heads", default="1,6,12", help="numbers of heads")
    parser.add_argument("--batch", default="16,128", help="numbers of streams")
    parser.add_argument("--steps", type=int, default=1024, help="steps of a stream")
    parser.add_argument("--backends", default="cuda_fused,cuda,triton_fused", help="FlashRNN's")
    parser.add_argument("--seconds", type=float, default=1, help="measuring time of each layer")
    parser.add_argument("--builds", default="build-flashrnn", help="where FlashRNN compiles")
    options = parser.parse_args()
    shapes = [(int(heads), int(batch)) for heads in options.heads.split(",") for batch in options.batch.split(",")]

    context = multiprocessing.get_context("spawn")
    queue, gpu = context.Queue(), context.Lock()
    workers = [context.Process(target=theirs, args=(queue, gpu, options, backend, *shape))
               for backend in options.backends.split(",") for shape in shapes
               if backend != "triton_fused" or options.units // shape[0] <= 64]
    for worker in workers:
        worker.start()
    found = {(backend, heads, batch): times for backend, heads, batch, *times in (queue.get() for _ in workers)}
    for worker in workers:
        worker.join()

    print(f"{options.units} units, {options.steps} steps: milliseconds, and times ours is as fast\n"
          f"{'heads':>5} {'B':>4} {'':14} {'forward':>9} {'':>6} {'both':>9}")
    for heads, batch in shapes:
        mine = ours(options, heads, batch)
        print(f"{heads:5} {batch:4} {'smallworld':14} {mine[0]:9.3f} {'':6} {mine[1]:9.3f}", flush=True)
        for backend in BACKENDS:
            forward, both = found.get((backend, heads, batch), (None, None))
            if forward is not None:
                print(f"{heads:5} {batch:4} {backend:14} {forward:9.3f} {forward / mine[0]:6.2f} {both:9.3f} "
                      f"{both / mine[1]:6.2f}", flush=True)
            elif both:
                print(f"{heads:5} {batch:4} {backend:14} {both}", flush=True)


if __name__ == "__main__":
    main()
