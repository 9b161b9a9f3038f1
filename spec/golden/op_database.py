# SPDX-License-Identifier: MIT
"""Golden files of PyTorch's own test database of operators (OpInfo): its sample inputs, what PyTorch makes of them, gradients,
products with the Hessian, tangents, and the calls that it refuses.

Run: python3 spec/golden/op_database.py [--autocast bf16] DIR [op ...] (needs torch and expecttest), then
     build/bin/perilune run spec/golden.lua -- DIR [--autocast bf16] [--mode …]

spec/golden/cases.lua reads the files. Not written: what is random, sparse, complex or larger than a few thousand elements,
and arguments that have no counterpart (layouts, devices, slices).

What perilune answers differently on purpose has its rows, with reasons, in spec/golden/exceptions.lua.
"""
import contextlib
import inspect
import math
import os
import sys
import warnings
import zlib

import torch

warnings.filterwarnings("ignore")
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

MOST = 5000  # elements of a tensor
SAMPLES = {torch.float64: 40, torch.float32: 12, torch.int64: 12, torch.bool: 6}
NAMES = {torch.float64: "f64", torch.float32: "f32", torch.int64: "i64", torch.int32: "i32", torch.int16: "i16",
         torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool", torch.float16: "f16", torch.bfloat16: "bf16"}
TOLERANCE = {"f64": (1e-9, 1e-10), "f32": (2e-4, 2e-5)}
AUTOCAST = None  # a dtype: what PyTorch gives inside of torch.autocast, values alone
IGNORED = {"device", "layout", "pin_memory", "requires_grad", "memory_format"}
RANDOM = ("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "rand", "uniform",
          "nn.functional.dropout", "nn.functional.alpha_dropout", "nn.functional.feature_alpha", "nn.functional.rrelu",
          "nn.functional.fractional", "svd_lowrank", "pca_lowrank", "empty", "new_empty", "atleast", "broadcast_shapes")
FOREIGN = ("torch.", "jiterator", "fft.", "sparse", "to_sparse", "hash_tensor", "masked.", "_", "signal.")
# Complex numbers, and functions that are called in another way.
OTHERS = {"cdouble", "cfloat", "chalf", "complex", "svd", "linalg.lstsq", "linalg.lu", "linalg.lu_factor", "linalg.inv_ex", "lu",
          "zero_", "scalar_tensor", "histogram", "to", "argwhere", "linalg.vander", "linalg.pinv"}
# Arguments of functions whose signature says *args.
ARGUMENTS = {
    "nn.functional.max_pool": ["input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"],
    "nn.functional.adaptive_max_pool": ["input", "output_size", "return_indices"],
    "nn.functional.embedding_bag": ["weight", "input", "offsets"],
    "nn.functional.embedding": ["weight", "input"],
    "where": ["input", "condition", "other"],
    "to": ["input", "dtype"],
    "nonzero": ["input"], "unique": ["input"],
}


class Skip(Exception):
    """This sample cannot be written."""


def lua(v):
    if v is None:
        return "nil"
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, int):
        return str(v) if v != -2**63 else "math.mininteger"
    if isinstance(v, float):
        return "0/0" if v != v else ("1/0" if v > 0 else "-1/0") if math.isinf(v) else repr(v)
    if isinstance(v, str):
        return '"' + v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(v, (list, tuple)):
        return "{" + ",".join("{none=true}" if e is None else lua(e) for e in v) + "}"
    return "{" + ",".join(f"[{lua(k)}]={lua(e)}" for k, e in v.items() if e is not None) + "}"


class File:
    """One operator: cases, and the numbers of their tensors."""

    def __init__(self, op):
        self.family = "nn" if op.startswith("nn.functional.") else "op"
        op = op.replace("nn.functional.unfold", "nn.unfold").replace("nn.functional.", "")
        self.op, self.bytes, self.cases, self.signature = op, bytearray(), [], []

    def ref(self, t, layout=False):
        if t.dtype not in NAMES or t.layout != torch.strided or t.device.type != "cpu" or t.numel() > MOST:
            raise Skip
        t = t.detach().resolve_neg()
        ref = {"dtype": NAMES[t.dtype], "shape": list(t.shape)}
        if layout and t.numel() and not t.is_contiguous():
            span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
            ref.update(strides=list(t.stride()), storage_offset=0, storage_numel=span)
            t = torch.as_strided(t, (span,), (1,), t.storage_offset())
        self.bytes.extend(b"\0" * (-len(self.bytes) % 16))
        ref["offset"] = len(self.bytes)
        if t.numel():
            flat = t.clone(memory_format=torch.contiguous_format).reshape(-1)
            self.bytes.extend(flat.view(torch.uint8).numpy().tobytes())
        return ref

    def write(self, folder, name):
        with open(os.path.join(folder, name + ".bin"), "wb") as f:
            f.write(self.bytes)
        with open(os.path.join(folder, name + ".lua"), "w") as f:
            f.write("local C = {}\n")
            f.writelines(f"C[#C + 1] = {case}\n" for case in self.cases)
            head = {"op": self.op, "family": self.family, "bin": name + ".bin", "signature": self.signature}
            f.write(f"local file = {lua(head)}\nfile.cases = C\nreturn file\n")


def tensors_of(v, found):
    if isinstance(v, torch.Tensor):
        if not any(v is t for t in found):
            found.append(v)
    elif isinstance(v, (list, tuple)):
        for e in v:
            tensors_of(e, found)
    elif isinstance(v, dict):
        tensors_of(list(v.values()), found)
    return found


def replaced(v, table):
    if isinstance(v, torch.Tensor):
        return table[id(v)]
    if isinstance(v, (list, tuple)):
        return type(v)(replaced(e, table) for e in v)
    return {k: replaced(e, table) for k, e in v.items()} if isinstance(v, dict) else v


def flat(y):
    if isinstance(y, (list, tuple)):
        return [t for e in y for t in flat(e)]
    if isinstance(y, torch.Tensor):
        return [y]
    raise Skip


def encoded(v, number):
    if isinstance(v, torch.Tensor):
        return {"input": number[id(v)]}
    if isinstance(v, torch.dtype) and v in NAMES:
        return NAMES[v]
    if isinstance(v, (list, tuple)):
        return [encoded(e, number) for e in v]
    if v is None or isinstance(v, (bool, int, float, str)):
        return v
    raise Skip


def fits(value, kind):
    if isinstance(value, torch.Tensor):
        return "Tensor" in kind and "List" not in kind
    if isinstance(value, (list, tuple)):
        return "List" in kind
    if isinstance(value, str):
        return "str" in kind
    if value is None:
        return "Optional" in kind
    return "Tensor" not in kind and "List" not in kind and "str" not in kind


def argument_names(op, values, keywords):
    """The names of positional arguments, from the function's signature or the schema that they fit."""
    for prefix, names in ARGUMENTS.items():
        if op.name.startswith(prefix) and len(names) >= len(values):
            return names
    if op.name.startswith("nn.functional."):
        try:
            parameters = inspect.signature(getattr(torch.nn.functional, op.name.split(".")[-1])).parameters.values()
            names = [p.name for p in parameters if p.kind == p.POSITIONAL_OR_KEYWORD]
            if len(names) >= len(values):
                return names
        except (AttributeError, TypeError, ValueError):
            pass
    name = op.name.replace("nn.functional.", "").replace(".", "_")
    for schema in torch._C._jit_get_schemas_for_operator("aten::" + name):
        known = [a.name for a in schema.arguments]
        places = [a for a in schema.arguments if not a.kwarg_only]
        if schema.overload_name.endswith("out") or len(places) < len(values) or not set(keywords) <= set(known):
            continue
        if set(keywords) & {a.name for a in places[: len(values)]}:
            continue
        if all(fits(v, str(a.type)) for a, v in zip(places, values)):
            return ["input" if a.name == "self" else a.name for a in places]
    raise Skip


def call_of(file, op, sample):
    values = [sample.input, *sample.args]
    keywords = {k: v for k, v in sample.kwargs.items() if k not in IGNORED}
    names = argument_names(op, values, keywords)
    for k in [*names, *keywords]:
        if k not in file.signature:
            file.signature.append(k)
    tensors = tensors_of([values, keywords], [])
    number = {id(t): i + 1 for i, t in enumerate(tensors)}
    args = {k: encoded(v, number) for k, v in [*zip(names, values), *keywords.items()]}
    return tensors, {"op": file.op, "args": args, "inputs": [file.ref(t, True) for t in tensors]}, values, keywords


def add_gradients(file, case, tensors, leaves, ys, seed, tol, second):
    noise = torch.Generator().manual_seed(seed)

    def like(t):
        return torch.randn(t.shape, generator=noise, dtype=torch.float64).to(t.dtype)

    def refs(values):
        table = {id(t): v for (t, _), v in zip(leaves, values)}
        return [False if id(t) not in table else table[id(t)] if table[id(t)] is False
                else file.ref(torch.zeros_like(t) if table[id(t)] is None else table[id(t)]) for t in tensors]

    xs = [x for _, x in leaves]
    dys = [like(y) if y.requires_grad else None for y in ys]
    told = [y for y in ys if y.requires_grad]
    grads = torch.autograd.grad(told, xs, [d for d in dys if d is not None], allow_unused=True, create_graph=second)
    case["grad_outputs"] = [False if d is None else file.ref(d) for d in dys]
    case["grads"], case["gtol"] = refs(grads), [10 * v for v in tol]
    if not second:
        return
    vs = [like(g) if g is not None and g.requires_grad else None for g in grads]
    if any(v is not None for v in vs):
        pairs = [(g, v) for g, v in zip(grads, vs) if v is not None]
        hv = torch.autograd.grad([p[0] for p in pairs], xs, [p[1] for p in pairs], allow_unused=True, retain_graph=True)
        case["hvp"] = {"v": refs([False if v is None else v for v in vs]), "hv": refs(hv), "tol": [100 * v for v in tol]}
    # tangents: the derivative of dyᵀ J v for dy
    us = [torch.zeros_like(y, requires_grad=True) for y in told]
    tangents = [like(x) for x in xs]
    pulled = torch.autograd.grad(told, xs, us, create_graph=True, allow_unused=True)
    pairs = [(g, v) for g, v in zip(pulled, tangents) if g is not None and g.requires_grad]
    if pairs:
        out = iter(torch.autograd.grad([p[0] for p in pairs], us, [p[1] for p in pairs], allow_unused=True))
        pushed = [None if not y.requires_grad else next(out) for y in ys]
        case["jvp"] = {"v": refs(tangents), "tol": [10 * v for v in tol],
                       "out": [False if j is None else file.ref(j) for j in pushed]}


def add_case(file, op, sample, name, dtype):
    tensors, case, values, keywords = call_of(file, op, sample)
    leaves, table = [], {}
    for t in tensors:
        c = t.detach().clone()
        if t.requires_grad and t.dtype == dtype:
            leaves.append((t, c.requires_grad_()))
        table[id(t)] = c
    values = replaced(values, table)
    with torch.autocast("cpu", AUTOCAST) if AUTOCAST else contextlib.nullcontext():
        ys = flat(op.op(*values, **replaced(keywords, table)))
    if AUTOCAST:
        plain = flat(op.op(*values, **replaced(keywords, table)))
        low = any(y.dtype in (torch.bfloat16, torch.float16) for y in ys)
        exact = not low and all(torch.allclose(y, z, rtol=1e-5, atol=1e-6, equal_nan=True) for y, z in zip(ys, plain) if y.dtype == z.dtype)
        case.update(id=name, tol=[3e-2, 3e-2] if low else [2e-4, 2e-5] if exact else [1e-2, 1e-2],
                    outputs=[file.ref(y) for y in ys])
        file.cases.append(lua(case))
        return
    tol = TOLERANCE.get(NAMES[dtype], TOLERANCE["f32"])
    if any(y.dtype == torch.float32 for y in ys):
        tol = TOLERANCE["f32"]
    case.update(id=name, tol=list(tol), outputs=[file.ref(y) for y in ys])
    if leaves and any(y.requires_grad for y in ys):
        try:
            second = dtype == torch.float64 and op.supports_gradgrad
            add_gradients(file, case, tensors, leaves, ys, zlib.crc32(name.encode()), tol, second)
        except (RuntimeError, NotImplementedError):
            pass  # PyTorch has no derivative, or not of this order
    file.cases.append(lua(case))


def write(op, folder):
    file = File(op.name)
    name = file.op + ("@" + op.variant_test_name if op.variant_test_name else "")
    for dtype, most in SAMPLES.items():
        if dtype not in op.dtypes:
            continue
        torch.manual_seed(3)
        try:
            grad = dtype.is_floating_point and op.supports_autograd
            for k, sample in zip(range(most), op.sample_inputs("cpu", dtype, requires_grad=grad)):
                try:
                    add_case(file, op, sample, f"{name}/{NAMES[dtype]}/{k + 1:03}", dtype)
                except (Skip, RuntimeError, TypeError):
                    pass
        except (ValueError, RuntimeError):
            pass  # the database has no samples of this dtype
    for k, e in enumerate(op.error_inputs("cpu") if op.error_inputs_func and not AUTOCAST else []):
        try:
            case = call_of(file, op, e.sample_input)[1]
            if "out" not in case["args"]:
                file.cases.append(lua({**case, "id": f"{name}/error/{k:03}", "error": True, "why": str(e.error_regex)}))
        except Skip:
            pass
    if file.cases:
        file.write(folder, name)
    return name if file.cases else None


def main():
    global AUTOCAST
    args = sys.argv[1:]
    if args[0] == "--autocast":
        AUTOCAST = {"bf16": torch.bfloat16, "f16": torch.float16}[args[1]]
        args = args[2:]
        SAMPLES.clear()
        SAMPLES.update({torch.float32: 12, AUTOCAST: 6})
    folder, only = args[0], set(args[1:])
    os.makedirs(folder, exist_ok=True)
    written = []
    for op in op_db:
        left_out = op.name.startswith(RANDOM) or op.name.startswith(FOREIGN) or op.name in OTHERS
        if not left_out and (not only or op.name in only):
            name = write(op, folder)
            if name:
                written.append({"op": name})
    with open(os.path.join(folder, "index.lua"), "w") as f:
        f.write(f"return {lua(written)}\n")
    print(len(written), "operators")


if __name__ == "__main__":
    main()
