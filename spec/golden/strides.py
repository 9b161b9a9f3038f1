# SPDX-License-Identifier: MIT
# Writes spec/golden/strides.lua: PyTorch's strides of views and copies of tensors that have sizes of 0 and 1, in every order of
# their dims. Run once, by hand:
#   python spec/golden/strides.py > spec/golden/strides.lua
# spec/tensor/strides_spec.lua asks for the same.
import itertools

import torch

SHAPES = [(1,), (0,), (3, 1), (1, 3), (1, 1), (0, 3), (3, 0), (0, 0), (1, 0), (2, 1, 3), (1, 2, 1), (2, 0, 3), (1, 1, 4),
          (0, 2, 1), (2, 1, 3, 1), (1, 2, 3, 1), (2, 3, 1, 1), (2, 0, 1, 3)]
# The text is Lua, with 1-based dims; x is the tensor.
CALLS = [
    ("x:clone()", lambda x: x.clone()),
    ("x:contiguous()", lambda x: x.contiguous()),
    ("T.zeros_like(x)", torch.zeros_like),
    ("T.empty_like(x)", torch.empty_like),
    ("T.rand_like(x)", torch.rand_like),
    ("T.full_like(x, 2)", lambda x: torch.full_like(x, 2)),
    ("x:to('f64')", lambda x: x.double()),
    ("x:neg()", lambda x: x.neg()),
    ("x * x", lambda x: x * x),
    ("x:eq(x)", lambda x: x.eq(x)),
    ("T.where(x:eq(x), x, x)", lambda x: torch.where(x.eq(x), x, x)),
    ("x:detach()", lambda x: x.detach()),
    ("x:transpose(1, -1)", lambda x: x.transpose(0, -1)),
    ("x:transpose(1, -1):clone()", lambda x: x.transpose(0, -1).clone()),
    ("x:movedim(1, -1)", lambda x: x.movedim(0, -1)),
    ("x:unsqueeze(1)", lambda x: x.unsqueeze(0)),
    ("x:unsqueeze(2)", lambda x: x.unsqueeze(1)),
    ("x:unsqueeze(-1)", lambda x: x.unsqueeze(-1)),
    ("x:unsqueeze(2):clone()", lambda x: x.unsqueeze(1).clone()),
    ("x:squeeze()", lambda x: x.squeeze()),
    ("x:squeeze(1)", lambda x: x.squeeze(0)),
    ("x:flatten()", lambda x: x.flatten()),
    ("x:view(x:shape())", lambda x: x.view(x.shape)),
    ("x:view_as(x)", lambda x: x.view_as(x)),
    ("x:reshape(x:shape())", lambda x: x.reshape(x.shape)),
    ("x:reshape(1, x:numel(), 1)", lambda x: x.reshape(1, x.numel(), 1)),
    ("x:expand_as(x)", lambda x: x.expand_as(x)),
    ("x:unsqueeze(1):expand(2, table.unpack(x:shape()))", lambda x: x.unsqueeze(0).expand(2, *x.shape)),
    ("x:unsqueeze(1):expand(2, table.unpack(x:shape())):clone()", lambda x: x.unsqueeze(0).expand(2, *x.shape).clone()),
    ("x:narrow(1, 1, 0)", lambda x: x.narrow(0, 0, 0)),
    ("x:narrow(1, 1, x:size(1))", lambda x: x.narrow(0, 0, x.size(0))),
    ("x:narrow(-1, 1, x:size(-1)):clone()", lambda x: x.narrow(-1, 0, x.size(-1)).clone()),
    ("x:chunk(2)[1]", lambda x: x.chunk(2)[0]),
    ("x:softmax(1)", lambda x: x.softmax(0)),
    ("x:sum(1)", lambda x: x.sum(0)),
]


def lua(v):
    return "{ " + ", ".join(map(str, v)) + " }" if len(v) else "{}"


def cases():
    seen = set()
    for shape in SHAPES:
        n = len(shape)
        for order in itertools.permutations(range(n)):
            base = [0] * n
            for k, d in enumerate(order):
                base[d] = shape[k]
            x = torch.zeros(base).permute(order)
            assert tuple(x.shape) == shape
            if (shape, x.stride()) not in seen:
                seen.add((shape, x.stride()))
                yield x


print("-- SPDX-License-Identifier: MIT")
print(f"-- Written by spec/golden/strides.py with PyTorch {torch.__version__.split('+')[0]}: calls, and by tensor its sizes and strides,")
print("-- then the strides of each call's result.")
print("return {")
print("  calls = {")
for text, _ in CALLS:
    print(f'    "{text}",')
print("  },")
for x in cases():
    print(f"  {{ {lua(x.shape)}, {lua(x.stride())},")
    line = "   "
    for _, f in CALLS:
        item = f" {lua(f(x).stride())},"
        if len(line) + len(item) > 120:
            print(line)
            line = "   "
        line += item
    print(line + " },")
print("}")
