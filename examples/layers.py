#!/usr/bin/env python3
"""A block-sparse net in PyTorch learns what another one computes: examples/layers.py [cpu|cuda]"""

import sys

import networkx
import torch
from torch import nn

from smallworld.torch import BlockSparseLinear

if sys.argv[1:] not in ([], ["cpu"], ["cuda"]):
    sys.exit(__doc__)
device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
torch.manual_seed(1)


def net(nodes=32, degree=4, block=32):
    graph = networkx.watts_strogatz_graph(nodes, degree, 0.2, seed=1)  # each node reads its neighbours and itself
    layers = [BlockSparseLinear(graph, block), nn.GELU(), BlockSparseLinear(graph, block), nn.GELU(),
              nn.Linear(nodes * block, 10)]
    return nn.Sequential(*layers).to(device)


teacher, student = net(), net()
print(student)
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
for step in range(1, 101):
    x = torch.randn(256, 1024, device=device)
    loss = nn.functional.mse_loss(student(x), teacher(x).detach()) / teacher(x).detach().var()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"step {step}: {100 * loss.item():.1f} % of the variance is left")
