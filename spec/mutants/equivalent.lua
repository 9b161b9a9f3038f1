-- SPDX-License-Identifier: MIT
-- Mutants that no spec can kill, each read and found to change nothing that a caller sees: file, function, what of the
-- mutant's text (plain, a part of it), and why. What is killed after all is named by run.lua, so that an entry that is
-- wrong does not stay.
local list = {
  { nil, nil, "INT64_MAX", "no tensor has sizes near 2^63: pl_sizes_check refuses them first" },
  { "recurrent/", "seq_infer", '"%s: too long"', "no tensor has sizes near 2^63: pl_sizes_check refuses them first" },
  { nil, nil, "nin > 1 with >=", "asks for one input more than there are; what callers have there is none" },
  { nil, nil, "nin > B_STATE with >=", "asks for one input more than there are; what callers have there is none" },
  { nil, nil, "nin > MASK with >=", "asks for one input more than there are; what callers have there is none" },
  { nil, nil, "nin > 2 with >=", "asks for one input more than there are; what callers have there is none" },
  { "ternary.c", "clamp_tensor_grad", "g->nin > 1 && g", "the op is refused without a bound, so there are two inputs" },
  { "index.c", "pl_g_sum_sizes", "pl_op_sum_to, 2", "the second input is none" },
  { "scatter.c", "written_last", "pl_attrs_init",
    "attributes of the op before it: those that this one has are set, others are not read" },
  { "scatter.c", "index_copy_grad", "in[0] + 1", "a reshape to the shape that is there, or none" },
  { "linalg_grad.c", "qr_pivots", "m > n with", "moves a limit of rounding within its order" },
  { "matmul.c", "product_grad", "ndim > 2)", "one product or the general way: the same numbers" },
  { "matmul.c", "product_grad", "in[1] - 1", "one product or the general way: the same numbers" },
  { "matmul_operands.c", "pl_window_insert", "shape[d + 1]", "the stride of a dim of size 1" },
  { "matmul_operands.c", "pl_window_flatten", "keep ?", "the stride of a dim of size 1" },
  { "matmul_operands.c", "pl_window_copy", ".nin = 1", "kernels of copies have one input and do not count it" },
  { "matmul_operands.c", "pl_window_done", "dense || n == 0", "of an empty window nothing is read" },
  { "conv.c", nil, "outd[0] + 1", "a narrow to the sizes that are there, or none" },
  { "cross_entropy.c", "class_infer", "nout == 1) return", "describes a second result that the op has not" },
  { "loss.c", "scale", "n ? n : 1", "the divisor of a gradient without elements" },
  { "loss.c", "clamp", "hi > lo with >=", "they are never equal" },
  { "norm_double_backward.c", "layer", "in[1] - 1", "dy has the rank of x" },
  { "pool.c", "max_bwd_infer", "in[0] + 1", "the indices have the shape of dy" },
  { "pool.c", "avg_bwd_infer", "nd < 1", "an empty kernel_size is refused by read_pool, too" },
  { "scan.c", "check_rows", "i < c->nin with <=", "what is behind the inputs is none" },
  { "unroll.c", "pl_unroll_stack", "zero == PL_NONE with ||", "makes zeros that nobody reads" },
  { "join.c", "pad_grad", "g->attrs, 1) ==", "the other op does the same for a constant" },
  { "join.c", "stack_infer", "int i = 1; i", "compares the first tensor with itself" },
  { "narrow.c", "windowed_infer", "strides[d] = x.numel", "of the window only the sizes are compared" },
  { "narrow.c", "as_strided_grad", "k < 2 with <=", "the attribute is set again behind the loop" },
  { "view.c", "unflatten_infer", "c->attrs, 1),: 1 + 1 #2",
    "the only list begins where that of an attribute which is not set does" },
  { "view.c", "shape_tensor", "PL_TRY(pl_check_", "shapes are of shape_of, everywhere: i64, of one dim" },
  { "view.c", "reshaped", "d->offset = 0", "the call begins with that" },
  { "view.c", "unflatten_infer", "n, sizes, true);: not true", "a dim that is split needs no copy" },
  { "view.c", "view_infer", "c->attrs, 0),: 0 + 1",
    "the only list begins where that of an attribute which is not set does" },
  { "search.c", "unique_infer", "3) : -1; int64_t: 1 + 1", "only the sign of a dim that is none is read" },
  { "search.c", "unique_infer", "(; o < 3; o: 3 + 1", "describes a fourth result that the op has not" },
  { "view.c", "permute_grad", "g->attrs, 0)[",
    "the only list begins where that of an attribute which is not set does" },
  { "shape.c", "zeros_of_infer", '"zeros_of: a shape of', "shapes are of shape_of, which has no more sizes" },
  { "linalg_grad.c", "qr_wide", "triu(g, dR, 0)", "X takes away again what is below the diagonal of dR" },
  { "matmul.c", "matmul_grad", "-1 without - #4", "the last of two dims is the second" },
  { "join.c", "cat_grad", "1 || dim != 0", "zeros like an empty tensor, or an empty part of dy" },
  { "join.c", "cat_infer", "the list of tensors is empty", "no op takes an empty list" },
  { "recurrent_net", "forward", "bias == PL_NONE ? 2 : 3: 2 + 1", "the input behind the last is none" },
  { "norm_double_backward.c", "second", "project(s, g_mul(g, s->u, s->dy))): swapped", "sums commute" },
}

return function(m)
  for _, e in ipairs(list) do
    local place = (not e[1] or m.file:find(e[1], 1, true)) and (not e[2] or m.func == e[2])
    if place and (m.what .. "\n" .. m.key):find(e[3], 1, true) then return e[4] end
  end
end
