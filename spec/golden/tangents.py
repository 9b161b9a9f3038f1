# SPDX-License-Identifier: MIT
"""Golden files of tangents where derivatives have corners: PyTorch's own samples of its operators with ties, zeros, NaN and infinite
numbers put in, in other layouts, of no elements, in all floating dtypes; J v by torch.func.jvp, and by double backward.

Run: python3 spec/golden/tangents.py DIR [op ...] (needs torch and expecttest), then
     build/bin/perilune run spec/golden.lua -- DIR

Where PyTorch's two modes disagree either is right, and at NaN and infinite arguments NaN of either library says nothing. Halves are
judged by what double gives for the same numbers. What differs beyond that was compared with difference quotients in double, from
both sides, and has its reason in spec/golden/exceptions.lua.
"""
import os
import sys
import warnings
import zlib

import torch

from op_database import FOREIGN, NAMES, OTHERS, RANDOM, File, Skip, call_of, flat, lua, op_db, replaced

warnings.filterwarnings("ignore")
FLOATS = {torch.float64: 24, torch.float32: 8, torch.float16: 6, torch.bfloat16: 6}  # samples
TOLERANCE = {"f64": 1e-9, "f32": 2e-4, "f16": 6e-3, "bf16": 4e-2}
HALVES = (torch.float16, torch.bfloat16)
MOST = 400  # elements of a tensor
SPECIAL = ("nan", "inf", "-inf")



def put(x, value, every):
    y = x.clone().reshape(-1)
    y[1::every] = value
    return y.reshape(x.shape)


def transposed(x):
    order = list(range(x.dim()))[::-1]
    return x.permute(order).contiguous().permute(order) if x.dim() > 1 else None


def stepped(x):
    if x.dim() == 0 or x.numel() == 0:
        return None
    wide = torch.ones(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)
    wide[..., ::2] = x
    return wide[..., ::2]


INF = float("inf")
TWISTS = {
    "plain": lambda x: x,
    "ties": lambda x: (x * 2).round() / 2,
    "zeros": lambda x: put(x, 0.0, 3) if x.dim() else torch.zeros_like(x),
    "zero": torch.zeros_like,
    "one": torch.ones_like,
    "nan": lambda x: put(x, float("nan"), 5) if x.numel() > 1 else None,
    "inf": lambda x: put(x, INF, 5) if x.numel() > 1 else None,
    "-inf": lambda x: put(x, -INF, 5) if x.numel() > 1 else None,
    "transposed": transposed,
    "stepped": stepped,
    "expanded": lambda x: x[:1].expand(x.shape) if x.dim() and x.shape[0] > 1 else None,
    "empty": lambda x: x[:0] if x.dim() else None,
}


def wide(v, dtype):
    return v.double() if isinstance(v, torch.Tensor) and v.dtype == dtype else v


def differentiate(op, tensors, values, keywords, dtype, compute, noise):
    """Primal values, tangents of the inputs, J v by forward mode and by double backward."""
    at = [k for k, t in enumerate(tensors) if t.dtype == dtype and t.requires_grad]
    if not at:
        raise Skip
    vs = [torch.randn(tensors[k].shape, generator=noise, dtype=torch.float64).to(dtype) for k in at]
    plain = [t.detach() for t in tensors]
    if compute != dtype:
        plain = [wide(t, dtype) for t in plain]

    def f(*xs):
        now = list(plain)
        for k, x in zip(at, xs):
            now[k] = x
        table = {id(t): n for t, n in zip(tensors, now)}
        return tuple(flat(op.op(*replaced(values, table), **replaced(keywords, table))))

    xs, us = [plain[k] for k in at], [v.to(compute) for v in vs]
    forward = reverse = None
    try:
        ys, forward = torch.func.jvp(f, tuple(xs), tuple(us))
    except (RuntimeError, NotImplementedError):
        ys = f(*xs)
    try:
        leaves = [x.clone().requires_grad_() for x in xs]
        outs = f(*leaves)
        told = [y for y in outs if y.requires_grad]
        dys = [torch.zeros_like(y, requires_grad=True) for y in told]
        pulled = torch.autograd.grad(told, leaves, dys, create_graph=True, allow_unused=True)
        pairs = [(g, u) for g, u in zip(pulled, us) if g is not None and g.requires_grad]
        if pairs:
            out = iter(torch.autograd.grad([p[0] for p in pairs], dys, [p[1] for p in pairs], allow_unused=True))
            reverse = [next(out) if y.requires_grad else None for y in outs]
            reverse = [torch.zeros_like(y) if r is None else r for r, y in zip(reverse, outs)]
    except (RuntimeError, NotImplementedError):
        pass
    if forward is None and reverse is None:
        raise Skip
    return ys, at, vs, forward, reverse


def add(file, op, sample, name, dtype, twist):
    tensors, case, values, keywords = call_of(file, op, sample)
    if any(t.numel() > MOST for t in tensors):
        raise Skip
    table, any_other = {}, twist == "plain"
    new = []
    for t in tensors:
        n = t
        if t.dtype == dtype and t.requires_grad:
            other = TWISTS[twist](t.detach())
            if other is not None:
                any_other = True
                n = other.requires_grad_() if other.is_leaf else other.detach().requires_grad_()
        table[id(t)] = n
        new.append(n)
    if not any_other:
        raise Skip
    values, keywords = replaced(values, table), replaced(keywords, table)
    compute = torch.float64 if dtype in HALVES else dtype
    noise = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    ys, at, vs, forward, reverse = differentiate(op, new, values, keywords, dtype, compute, noise)

    with torch.no_grad():
        dtypes = [y.dtype for y in flat(op.op(*values, **keywords))] if compute != dtype else [y.dtype for y in ys]

    def told(ts):
        return [file.ref(t.to(d)) if d.is_floating_point else False for t, d in zip(ts, dtypes)]

    tol = TOLERANCE[NAMES[dtype]]
    if any(y.dtype == torch.float32 for y in ys) and dtype == torch.float64:
        tol = TOLERANCE["f32"]
    tol = [tol, tol]
    if compute != dtype:  # rounding is of the largest
        tol[1] *= max([1.0, *(float(t[t.isfinite()].abs().max()) for t in forward or reverse if t.isfinite().any())])
    inputs = {k: file.ref(v) for k, v in zip(at, vs)}
    jvp = {"v": [inputs.get(k, False) for k in range(len(new))], "tol": tol, "out": told(forward or reverse), "special": twist in SPECIAL}
    if forward and reverse:
        jvp["also"] = told(reverse)
    case.update(id=name, inputs=[file.ref(t, True) for t in new], jvp=jvp)
    file.cases.append(lua(case))


def write(op, folder, twists):
    file = File(op.name)
    name = file.op + ("@" + op.variant_test_name if op.variant_test_name else "")
    for dtype, most in FLOATS.items():
        if not op.supports_autograd or dtype not in op.dtypes:
            continue
        torch.manual_seed(3)
        try:
            samples = [s for _, s in zip(range(most), op.sample_inputs("cpu", dtype, requires_grad=True))]
        except (ValueError, RuntimeError):
            continue
        for k, sample in enumerate(samples):
            for twist in twists:
                if dtype in HALVES and twist in (*SPECIAL, "stepped"):
                    continue
                if sample.kwargs.get("dropout_p"):
                    continue
                try:
                    add(file, op, sample, f"{name}/{NAMES[dtype]}/{k + 1:03}/{twist}", dtype, twist)
                except (Skip, RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
                    pass
    if file.cases:
        file.write(folder, name)


def main():
    folder, only = sys.argv[1], set(sys.argv[2:])
    torch.set_num_threads(1)
    os.makedirs(folder, exist_ok=True)
    written = []
    for op in op_db:
        left_out = op.name.startswith(RANDOM) or op.name.startswith(FOREIGN) or op.name in OTHERS
        if not left_out and (not only or op.name in only):
            name = File(op.name).op + ("@" + op.variant_test_name if op.variant_test_name else "")
            for twists in (list(TWISTS), [t for t in TWISTS if t != "empty"]):
                child = os.fork()  # some of PyTorch's kernels divide by the number of elements
                if child == 0:
                    write(op, folder, twists)
                    os._exit(0)
                if os.waitpid(child, 0)[1] == 0:
                    break
            if os.path.exists(os.path.join(folder, name + ".lua")):
                written.append({"op": name})
    with open(os.path.join(folder, "index.lua"), "w") as f:
        f.write(f"return {lua(written)}\n")
    print(len(written), "operators")


if __name__ == "__main__":
    main()
