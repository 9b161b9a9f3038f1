# SPDX-License-Identifier: MIT
# What bench/distributed.lua measures, in PyTorch (gloo): python3 -m torch.distributed.run --nproc-per-node 2 THIS
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def timed(f, rounds=7, seconds=0.2):
    def slowest(v):
        t = torch.tensor([v], dtype=torch.float64)
        dist.all_reduce(t, dist.ReduceOp.MAX)
        return t.item()

    f()
    dist.barrier()
    start = time.perf_counter()
    f()
    n = max(1, int(seconds / slowest(time.perf_counter() - start)))
    samples = []
    for _ in range(rounds):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(n):
            f()
        samples.append(slowest((time.perf_counter() - start) / n))
    return sorted(samples)[len(samples) // 2]


def report(name, size, f):
    s = timed(f)
    if dist.get_rank() == 0:
        print('{"workload":"%s","impl":"torch","processes":%d,"median_s":%.6g,"gb_per_s":%.3g}'
              % (name, dist.get_world_size(), s, size / s / 1e9))


for n in (1, 1024, 65536, 1048576, 16777216):
    x = torch.ones(n)
    report("all_reduce_%d" % (4 * n), 4 * n, lambda: dist.all_reduce(x))

layers = []
for _ in range(4):
    layers += [torch.nn.Linear(1024, 1024), torch.nn.ReLU()]
net = torch.nn.Sequential(*layers)
ddp = torch.nn.parallel.DistributedDataParallel(net)
x = torch.randn(64, 1024)


def step(module):
    net.zero_grad()
    module(x).square().mean().backward()


report("ddp_mlp_step", 4 * sum(p.numel() for p in net.parameters()), lambda: step(ddp))
report("mlp_step_alone", 0, lambda: step(net))
dist.destroy_process_group()
