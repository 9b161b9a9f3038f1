# SPDX-License-Identifier: MIT
"""Golden files of operators at the values where they turn: zeros of both signs, infinities, NaN, subnormals, the ends of every
integer, divisors of 0, shifts past the width, casts of what does not fit; in all dtypes, with PyTorch's answers.

Run: python3 spec/golden/special_values.py DIR (needs torch and expecttest), then
     build/bin/perilune run spec/golden.lua -- DIR

Where PyTorch's answer is undefined, differs between its vector and its scalar code, or perilune promises another
(integer division by 0 is an error; floats that do not fit an integer saturate, NaN is 0), no case is written.
"""
import os
import sys
import warnings

import torch

from op_database import NAMES, File, lua

warnings.filterwarnings("ignore")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
TOL = {"f64": (1e-12, 1e-300), "f32": (2e-6, 1e-37), "f16": (2e-3, 1e-7), "bf16": (1.6e-2, 1e-37)}


def values(dtype):
    if dtype == torch.bool:
        return [False, True]
    if dtype.is_floating_point:
        f = torch.finfo(dtype)
        one = [0.0, f.tiny, f.smallest_normal / 4, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 7.0, 10.0, 1e2, 1e4, f.max, float("inf")]
        return [*one, *[-v for v in one], float("nan"), 1.0 + f.eps, 1.0 - f.eps, -1.0 + f.eps, -1.0 - f.eps]
    i = torch.iinfo(dtype)
    some = {0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 100, i.max, i.max - 1, i.max // 2, i.min, i.min + 1, i.min // 2,
            -1, -2, -3, -5, -7, -8, -31, -32, -64, -100}
    return sorted(v for v in some if i.min <= v <= i.max)


UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac
i0 isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not logit nan_to_num neg positive rad2deg
reciprocal round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan tanh trunc bitwise_not special.ndtr
special.log_ndtr special.entr special.i0e special.i1 special.i1e special.erfcx""".split()
ACTIVATIONS = "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu silu softplus softshrink softsign tanhshrink".split()
BINARY = """add sub mul div floor_divide remainder fmod pow maximum minimum fmax fmin atan2 copysign hypot nextafter logaddexp logaddexp2
xlogy heaviside eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor gcd lcm
bitwise_left_shift bitwise_right_shift ldexp special.xlog1py float_power""".split()
REDUCE = "sum mean prod amax amin var std logsumexp nansum nanmean cumsum cumprod logcumsumexp argmax argmin all any median nanmedian softmax log_softmax norm count_nonzero cummax cummin max min".split()


def find(name):
    at = torch
    for part in name.split("."):
        at = getattr(at, part, None)
    return at if at is not None else getattr(torch.nn.functional, name)


def slopes(file, fn, x):
    """Fields of a case: first and second derivatives, element by element."""
    x = x.clone().requires_grad_()
    try:
        y = fn(x)
        one = torch.ones_like(y)
        (g,) = torch.autograd.grad(y, x, one, create_graph=True)
        fields = {"grad_outputs": [file.ref(one)], "grads": [file.ref(g)], "gtol": [1e-9, 1e-300]}
        if g.requires_grad:
            (h,) = torch.autograd.grad(g, x, torch.ones_like(g))
            fields["hvp"] = {"v": [file.ref(one)], "hv": [file.ref(h)], "tol": [1e-8, 1e-300]}
        return fields
    except (RuntimeError, NotImplementedError):
        return {}


def add(file, name, ys, tensors, args, more=None):
    ys = list(ys) if isinstance(ys, (tuple, list)) else [ys]
    tol = TOL.get(NAMES[ys[0].dtype], (0, 0))
    case = {"op": file.op, "values": True, "id": name, "args": args, "inputs": [file.ref(t) for t in tensors], "tol": list(tol),
            "outputs": [file.ref(y) for y in ys], **(more or {})}
    file.cases.append(lua(case))


def guarded(name, a, b):
    """Which pairs have an answer that both sides promise."""
    d = torch.promote_types(a.dtype, b.dtype)
    keep = torch.ones(a.shape, dtype=torch.bool)
    if not d.is_floating_point:
        low = -1 if d == torch.bool else torch.iinfo(d).min
        if name in ("floor_divide", "remainder", "fmod"):
            keep &= (b != 0) & ((a != low) | (b != -1))
        if name in ("gcd", "lcm"):
            keep &= (a != low) & (b != low)
        if name == "pow":
            keep &= b >= 0
        if name.endswith("shift"):
            keep &= b >= 0
    return keep


def binary(name, folder):
    file = File(name.replace("special.", ""))
    file.signature = ["input", "other"]
    fn = find(name)
    for da in [*FLOATS, *INTS, torch.bool]:
        for db in [*FLOATS, *INTS, torch.bool]:
            x, y = torch.tensor(values(da), dtype=da), torch.tensor(values(db), dtype=db)
            a, b = (t.reshape(-1).clone() for t in torch.broadcast_tensors(x[:, None], y[None, :]))
            keep = guarded(name, a, b)
            a, b = a[keep], b[keep]
            try:
                out = fn(a, b)
            except (RuntimeError, TypeError):
                continue
            add(file, f"{name}/{NAMES[da]}/{NAMES[db]}", out, [a, b], {"input": {"input": 1}, "other": {"input": 2}})
    for da in [*FLOATS, *INTS, torch.bool]:  # a number beside a tensor
        for v in (0, 1, 2, -1, -3, 0.5, -0.5, 2.5, 1e4, 7, 31):
            if da == torch.uint8 and v < 0 and not isinstance(v, float):
                continue
            a = torch.tensor(values(da), dtype=da)
            b = torch.full_like(a, v, dtype=torch.result_type(a, v))
            a = a[guarded(name, a, b)]
            try:
                out = fn(a, v)
            except (RuntimeError, TypeError):
                continue
            if a.numel():
                add(file, f"{name}/{NAMES[da]}/number/{v}", out, [a], {"input": {"input": 1}, "other": v})
    return finish(file, folder)


def unary(name, folder):
    file = File(("nn.functional." if name in ACTIVATIONS else "") + name.replace("special.", ""))
    file.signature = ["input"]
    fn = find(name) if name not in ACTIVATIONS else getattr(torch.nn.functional, name)
    for d in [*FLOATS, *INTS, torch.bool]:
        x = torch.tensor(values(d), dtype=d)
        for k, t in enumerate([x, x.repeat(3)[: len(x) * 3 - 1]]):
            try:
                out = fn(t)
            except (RuntimeError, TypeError):
                continue
            add(file, f"{name}/{NAMES[d]}/{k}", out, [t], {"input": {"input": 1}})
        if d == torch.float64:
            for v in [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, -3.0, 6.0, 20.0, -20.0, float("inf"), -float("inf"), float("nan")]:
                t = torch.tensor([v], dtype=d)
                try:
                    more = slopes(file, fn, t)
                    if more:
                        add(file, f"{name}/slope/{v}", fn(t), [t], {"input": {"input": 1}}, more)
                except (RuntimeError, TypeError):
                    pass
    return finish(file, folder)


def casts(folder):
    file = File("to")
    file.signature = ["input", "dtype"]
    for a in [*FLOATS, *INTS, torch.bool]:
        for b in [*FLOATS, *INTS, torch.bool]:
            x = torch.tensor(values(a), dtype=a)
            if a.is_floating_point and not b.is_floating_point and b != torch.bool:
                i = torch.iinfo(b)
                x = x[torch.isfinite(x) & (x.double() > i.min - 1.0) & (x.double() < i.max)]
            add(file, f"to/{NAMES[a]}/{NAMES[b]}", x.to(b), [x], {"input": {"input": 1}, "dtype": NAMES[b]})
    return finish(file, folder)


def reductions(name, folder):
    file = File(("nn.functional." if name.endswith("softmax") else "") + name)
    file.signature = ["input", "dim"]
    fn = find(name)
    noise = torch.Generator().manual_seed(1)
    for d in [*FLOATS, *INTS, torch.bool]:
        rows = []
        if d.is_floating_point:
            inf, nan = float("inf"), float("nan")
            f = torch.finfo(d)
            rows = [[0.0, -0.0], [inf, 1], [-inf, 1], [inf, -inf], [nan, 1], [inf, nan], [-inf, -inf], [inf, inf], [nan, nan],
                    [f.max, f.max], [-f.max, -f.max], [f.tiny, f.tiny], [1, f.eps], [0, nan, inf, -inf, 2], [3, 1, 2, 1, 3],
                    [1], [-inf], [inf], [nan]]
        elif d == torch.bool:
            rows = [[True, False], [True, True], [False, False], [True]]
        else:
            i = torch.iinfo(d)
            rows = [[i.max, 1], [i.max, i.max], [i.min, i.min], [i.max] * 9, [2] * 70, [3, 1, 2, 1, 3], [i.min], [0, 0]]
        tensors = [torch.tensor(r, dtype=d) for r in rows]
        for n in (1000, 4096, 4099):  # long rows
            t = torch.randn(n, generator=noise, dtype=torch.float64)
            tensors.append(t.to(d) if d.is_floating_point else (t * 30).to(torch.int64).to(d))
        for k, t in enumerate(tensors):
            for shape in ((t.numel(),), (t.numel(), 1)):
                x = t.reshape(shape)
                try:
                    out = fn(x, dim=0)
                    # half precision: what f64 gives, since PyTorch's order of summation is its own
                    if d in FLOATS and k >= len(rows) and name not in ("argmax", "argmin", "median", "nanmedian", "prod", "cumprod"):
                        out = out if isinstance(out, tuple) or out.dtype not in FLOATS else fn(x.double(), dim=0).to(out.dtype)
                except (RuntimeError, TypeError):
                    continue
                if isinstance(out, tuple) and k < len(rows) and d.is_floating_point and bool(torch.isnan(x).sum() > 1):
                    out = out[:1]
                if isinstance(out, tuple):
                    out = out[:1]
                add(file, f"{name}/{NAMES[d]}/{k}/{len(shape)}", out, [x], {"input": {"input": 1}, "dim": 0})
    return finish(file, folder)


def finish(file, folder):
    if file.cases:
        file.write(folder, file.op)
    return file.op if file.cases else None


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    written = [binary(n, folder) for n in BINARY] + [unary(n, folder) for n in [*UNARY, *ACTIVATIONS]] + [casts(folder)]
    written += [reductions(n, folder) for n in REDUCE if hasattr(torch, n)]
    with open(os.path.join(folder, "index.lua"), "w") as f:
        f.write(f"return {lua([{'op': n} for n in written if n])}\n")
    print(len(written), "operators")


if __name__ == "__main__":
    main()
