/* SPDX-License-Identifier: MIT
 * Matrices that are kept as blocks of ggml's formats (kernels/blocks.h): u8 [rows, bytes of a row], and the name of the format.
 *
 *   quantized_linear: y = x W^T + b, dx = dy W, db = sum of dy      quantized_matmul: y = x W, dx = dy W^T */
#include <string.h>

#include "engine/ops/make.h"
#include "kernels/blocks.h"

#define FORMAT \
  { .name = "format", .type = PL_A_ENUM, .choices = PLK_BLOCK_CHOICES }

static const PlkBlockFormat *format_of(const PlInfer *c) { return plk_block_choice((int)pl_attr_i(c->attrs, 0)); }

/* Elements of a row of blocks of input i. */
static PlStatus row_of(const PlInfer *c, int i, int64_t *elements) {
  const PlArray *w = c->in[i];
  const PlkBlockFormat *f = format_of(c);
  PL_TRY(pl_check_dtype(c, i, PL_U8));
  const int64_t bytes = w->ndim > 0 ? w->shape[w->ndim - 1] : 0;
  if (bytes == 0 || bytes % f->bytes != 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s is %s; a row of %s is a multiple of %d bytes, %d elements each", c->op->name, c->op->args[i],
            pl_desc_text(w), f->name, f->bytes, f->elements);
  *elements = bytes / f->bytes * f->elements;
  return PL_OK;
}

/* x[…, have] and blocks; the last dim of the result is `last`. */
static PlStatus product_infer(PlInfer *c, bool transposed) {
  const PlArray *x = c->in[0], *w = c->in[1];
  int64_t k;
  PL_TRY(pl_check_float(c, 0));
  PL_TRY(pl_check_ndim(c, 0, 1, PL_MAX_DIM));
  PL_TRY(pl_check_ndim(c, 1, 2, 2));
  PL_TRY(row_of(c, 1, &k));
  const int64_t want = transposed ? k : w->shape[0], last = transposed ? w->shape[0] : k, have = x->shape[x->ndim - 1];
  if (have != want)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s with blocks %s, which are %s[%lld,%lld]: %lld features given, %lld expected", c->op->name,
            pl_desc_text(x), pl_desc_text(w), format_of(c)->name, (long long)w->shape[0], (long long)k, (long long)have, (long long)want);
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, x->ndim, x->shape);
  c->out[0].shape[x->ndim - 1] = last;
  return PL_OK;
}

static PlStatus linear_infer(PlInfer *c) {
  PL_TRY(product_infer(c, true));
  PL_TRY(pl_check_same_dtype(c, 0, 2));
  return c->in[2] ? pl_check_shape(c, 2, 1, c->in[1]->shape) : PL_OK;
}
static PlStatus matmul_infer(PlInfer *c) { return product_infer(c, false); }

static double flops(const PlInfer *c) {
  int64_t k;
  return row_of(c, 1, &k) == PL_OK ? 2 * (double)c->in[0]->numel * (double)(c->out[0].shape[c->out[0].ndim - 1]) : 0;
}

/* dy times the same blocks by op. */
static PlVal product(PlMaker *g, const PlOp *op) {
  PlAttrs a;
  const PlVal in[2] = {g->dy[0], g->x[1]};
  pl_attrs_init(op, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, 0));
  if (op->nattr > 1) pl_attrs_int(&a, 1, 1);
  return pl_g_op(g, op, 2, in, &a, NULL);
}

static PlStatus linear_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = product(g, &pl_op_quantized_matmul);
  if (g->nin > 2 && g->want[2]) g->dx[2] = pl_g_sum_to(g, g->dy[0], 2);
  return g->status;
}
static PlStatus matmul_grad(PlMaker *g) {
  if (g->want[0]) g->dx[0] = product(g, &pl_op_quantized_linear);
  return g->status;
}

PL_OP(quantized_linear, .autocast = PL_CAST_LOW,
      .doc =
          "x[...,K] times the transpose of a matrix W[N,K] of blocks, u8 [N, bytes of a row], plus bias[N] if given: [...,N]. activations "
          "\"i16\": x may be rounded to 16 bits, in every 32 elements relative to the largest, so that few rows take as long as reading "
          "the blocks; \"float\": x as it is. No gradient for W.",
      .example = "local w = T.quantize_blocks(T.ones(2, 32), { format = \"Q8_0\" })\n"
                 "print(T.quantized_linear(T.ones(32), w, { format = \"Q8_0\" }):round())  --> {32., 32.}  -- f32[2] cpu",
      .formula = "y = x W^T + b; dx = dy W; db = sum of dy over all but the last dim", .nin = 3, .nopt = 1, .nout = 1,
      .args = {"x", "blocks", "bias"}, .nattr = 2, .attrs = {FORMAT, A_ENUM("activations", "i16|float", 0)}, .cls = PL_HEAVY,
      .batch = pl_batch_first, .flags = PL_F_POLY | PL_F_NOMETHOD | PL_F_CONTIGUOUS, .infer = linear_infer, .grad = linear_grad,
      .flops = flops, PL_KERNEL(quantized_linear));

PL_OP(quantized_matmul, .autocast = PL_CAST_LOW,
      .doc =
          "x[...,N] times a matrix W[N,K] of blocks, u8 [N, bytes of a row]: [...,K]. The gradient of quantized_linear. No gradient for W.",
      .example = "local w = T.quantize_blocks(T.ones(2, 32), { format = \"Q8_0\" })\n"
                 "print(T.quantized_matmul(T.ones(2), w, { format = \"Q8_0\" }):shape()[1])  --> 32",
      .formula = "y = x W; dx = dy W^T", .nin = 2, .nout = 1, .args = {"x", "blocks"}, .nattr = 1, .attrs = {FORMAT}, .cls = PL_HEAVY,
      .batch = pl_batch_first, .flags = PL_F_POLY | PL_F_NOMETHOD | PL_F_CONTIGUOUS, .infer = matmul_infer, .grad = matmul_grad,
      .flops = flops, PL_KERNEL(quantized_matmul));

/* ---- blocks and numbers -------------------------------------------------------------------------------------------------------- */

static PlStatus dequantize_infer(PlInfer *c) {
  const PlArray *w = c->in[0];
  const PlDtype d = (PlDtype)pl_attr_i(c->attrs, 1);
  int64_t k;
  PL_TRY(row_of(c, 0, &k));
  if (!pl_is_float(d)) PL_FAIL(PL_ERR_DTYPE, "%s: dtype must be floating, got %s", c->op->name, pl_dtype_name(d));
  pl_desc_set(&c->out[0], d, w->ndim, w->shape);
  c->out[0].shape[w->ndim - 1] = k;
  return PL_OK;
}

static PlStatus quantize_infer(PlInfer *c) {
  const PlArray *x = c->in[0];
  const PlkBlockFormat *f = format_of(c);
  PL_TRY(pl_check_float(c, 0));
  PL_TRY(pl_check_ndim(c, 0, 1, PL_MAX_DIM));
  if (!f->quantize) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: blocks of %s can be read, not made; Q8_0 and Q4_0 can", c->op->name, f->name);
  const int64_t k = x->shape[x->ndim - 1];
  if (k % f->elements != 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: rows of %s have %lld elements, which are no whole blocks of %d", c->op->name, pl_desc_text(x), (long long)k,
            f->elements);
  pl_desc_set(&c->out[0], PL_U8, x->ndim, x->shape);
  c->out[0].shape[x->ndim - 1] = k / f->elements * f->bytes;
  return PL_OK;
}

PL_OP(dequantize_blocks,
      .doc = "The numbers of blocks, u8 [..., bytes of a row]: [...,K] of dtype, the same bits as ggml's formulas in f32.",
      .example = "local w = T.quantize_blocks(T.ones(2, 32), { format = \"Q8_0\" })\n"
                 "print(T.dequantize_blocks(w, { format = \"Q8_0\" }):mean():round():item())  --> 1.0",
      .nin = 1, .nout = 1, .args = {"blocks"}, .nattr = 2,
      .attrs = {FORMAT, {.name = "dtype", .type = PL_A_DTYPE, .has_def = true, .i = PL_F32}}, .cls = PL_OPAQUE,
      .flags = PL_F_NOGRAD_OK | PL_F_NOMETHOD | PL_F_CONTIGUOUS, .infer = dequantize_infer, PL_KERNEL(dequantize_blocks));

PL_OP(quantize_blocks,
      .doc = "Blocks of x[...,K], u8 [..., bytes of a row]: Q4_0 to Q8_0 as ggml's reference rounds, Q4_K to Q6_K by a search that loses "
             "as little "
             "as its own. K must be whole blocks; x finite. No gradient.",
      .example = "print(T.quantize_blocks(T.ones(2, 64), { format = \"Q4_0\" }):shape()[2])  --> 36", .nin = 1, .nout = 1, .args = {"x"},
      .nattr = 1, .attrs = {FORMAT}, .cls = PL_OPAQUE, .flags = PL_F_NOGRAD_OK | PL_F_NOMETHOD | PL_F_CONTIGUOUS | PL_F_LATE,
      .infer = quantize_infer, PL_KERNEL(quantize_blocks));
