# SPDX-License-Identifier: MIT
# The peer of bench/ops.lua: reads requests line by line, answers each with one line.
#   set JSON    {"inputs": [[name, kind, [sizes]]], "setup": code, "call": expression, "grad": bool} -> ok, or error
#   time N      seconds per call, over N calls in a row
import json
import sys
import time

import torch
import torch.nn.functional as F  # noqa: F401 (the expressions name it)

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
          "i64": torch.int64, "i32": torch.int32, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool}


def tensor(kind, sizes):
    """kind: a dtype (normal numbers), uniform, spd (symmetric, positive), `dtype<n` (whole numbers below n)."""
    if "<" in kind:
        dtype, below = kind.split("<")
        return torch.randint(0, int(below), sizes, dtype=DTYPES[dtype])
    if kind == "bool":
        return torch.rand(sizes) < 0.5
    if kind == "uniform":
        return torch.rand(sizes)
    if kind == "spd":
        a = torch.randn(sizes)
        return a @ a.mT / sizes[-1] + torch.eye(sizes[-1])
    return torch.randn(sizes).to(DTYPES[kind])


def build(request):
    """The call to be timed: forward, or with `grad` forward and backward to every floating input."""
    names = {"torch": torch, "F": F}
    floats = []
    for name, kind, sizes in request["inputs"]:
        names[name] = t = tensor(kind, sizes)
        if request["grad"] and t.is_floating_point():
            floats.append(t.requires_grad_())
    exec(request["setup"], names)
    forward = eval("lambda: " + request["call"], names)
    if not request["grad"]:
        return forward
    with torch.no_grad():
        seed = torch.ones_like(forward())

    def both():
        for t in floats:
            t.grad = None
        forward().backward(seed)
    return both


def main():
    torch.set_num_threads(int(sys.argv[1]))
    torch.manual_seed(1)
    clock = time.process_time if "work" in sys.argv[2:] else time.perf_counter
    call = None
    for line in sys.stdin:
        verb, _, rest = line.strip().partition(" ")
        try:
            if verb == "set":
                call = build(json.loads(rest))
                call()
                print("ok")
            else:
                n = int(rest)
                start = clock()
                for _ in range(n):
                    call()
                print((clock() - start) / n)
        except Exception as e:  # the caller prints it and goes on with the next case
            print("error " + " ".join(str(e).split()))
        sys.stdout.flush()


main()
