/* SPDX-License-Identifier: MIT
 * Convolution's entry points: from a call to a PlkConv, then to the way of computing that
 * fits the dtype and size. The choice depends on the shape alone. */
#include "kernels/conv.h"

#include <string.h>

#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/onednn/onednn_matmul.h"
#include "kernels/cpu/shape/strided_copy.h"
#include "kernels/cpu/sizes.h"
#include "kernels/elementwise_codes.h"

/* Multiply-adds below which compiling a plan in the library does not pay. */
static const double LIBRARY_MACS = 1 << 20;

/* Dims of a tensor of `ndim` dims of which `nd` are spatial: the last one is a block of channels where that is one more. */
static int64_t block_of(const PlArray *a, int nd) { return a->ndim == nd + 3 ? a->shape[nd + 2] : 0; }

static int64_t product3(const int64_t a[3]) { return a[0] * a[1] * a[2]; }

static void describe(PlkConv *v, int kind, const PlAttrs *a, const PlArray *x, const PlArray *w, const PlArray *y) {
  memset(v, 0, sizeof *v);
  v->kind = kind;
  v->nd = w->ndim - 2;
  v->xblock = block_of(x, v->nd), v->yblock = block_of(y, v->nd);
  v->dtype = (PlDtype)y->dtype;
  v->g = pl_attr_i(a, 3);
  v->n = x->shape[0];
  v->c = w->shape[1];
  v->o = w->shape[0] / v->g;
  for (int i = 0; i < 3; i++) v->in[i] = v->k[i] = v->out[i] = v->stride[i] = v->dil[i] = 1;
  for (int i = 0; i < v->nd; i++) {
    const int at = 3 - v->nd + i;
    v->in[at] = x->shape[2 + i];
    v->k[at] = w->shape[2 + i];
    v->out[at] = y->shape[2 + i];
    v->stride[at] = pl_attr_list(a, 0)[i];
    v->pad[at] = pl_attr_list(a, 1)[i];
    v->dil[at] = pl_attr_list(a, 2)[i];
  }
  v->insize = product3(v->in), v->ksize = product3(v->k), v->outsize = product3(v->out);
  v->x = x->data, v->w = w->data, v->y = y->data;
}

/* Measured: with few input channels, the library's blocked gradients lose to our matrix
 * products. */
static bool library_pays(const PlkConv *v) {
  if (plk_conv_macs(v) * (double)v->n < LIBRARY_MACS) return false;
  if (v->kind == PLK_CONV_BWD_INPUT) return v->c > 8;
  if (v->kind == PLK_CONV_BWD_WEIGHT) return v->c < 4 || v->c > 8;
  return true;
}

/* The gradients of a 1×1 convolution without groups are products of floats as they lie, ahead of the library, which brings channels into
 * blocks and back: 0.5 to 0.8 of the time. Forward stays with it, as within graphs it finds blocks, and both have the same bits. */
static bool product_pays(const PlkConv *v) { return v->kind != PLK_CONV_FWD && v->g == 1 && plk_conv_pointwise(v); }

/* Of groups with few channels, at a stride of one, the gradient for x is a convolution of dy with each kernel turned round, for which
 * the library has a fast form: a depthwise one takes a fifth of the time of its matrix products. */
static bool turns_round(const PlkConv *v) {
  bool yes = v->kind == PLK_CONV_BWD_INPUT && v->dtype == PL_F32 && v->g > 1 && v->c <= 8 && v->o <= 8 && plk_onednn_ready();
  for (int d = 0; d < 3 && yes; d++) {
    const int64_t reach = v->dil[d] * (v->k[d] - 1);
    yes = v->stride[d] == 1 && v->pad[d] <= reach && v->in[d] == v->out[d] + reach - 2 * v->pad[d];
  }
  return yes && plk_conv_macs(v) * (double)v->n >= LIBRARY_MACS;
}

static PlStatus turned_round(const PlkConv *v, bool *done) {
  PlkConv f = *v;
  void *mem;
  PL_TRY(plk_scratch((size_t)plk_conv_numel(v, PLK_CONV_W) * sizeof(float), &mem));
  const float *from = v->w;
  float *to = mem;
  for (int64_t g = 0; g < v->g; g++)
    for (int64_t c = 0; c < v->c; c++)
      for (int64_t o = 0; o < v->o; o++)
        for (int64_t k = v->ksize; k-- > 0;) *to++ = from[((g * v->o + o) * v->c + c) * v->ksize + k];
  f.kind = PLK_CONV_FWD, f.kept = NULL, f.bias = NULL;
  f.c = v->o, f.o = v->c, f.x = v->y, f.w = mem, f.y = v->x;
  memcpy(f.in, v->out, sizeof f.in), memcpy(f.out, v->in, sizeof f.out);
  f.insize = v->outsize, f.outsize = v->insize;
  for (int d = 0; d < 3; d++) f.pad[d] = v->dil[d] * (v->k[d] - 1) - v->pad[d];
  PlStatus s = plk_conv_onednn(&f, done);
  plk_scratch_free(mem);
  return s;
}

enum { TAIL_CHUNK = 2048 }; /* both loops find it in the first cache */

void plk_conv_tail(const PlkConv *v, int64_t at, int64_t n) {
  static const PlAttrs none;
  const int64_t stride[3] = {sizeof(float), sizeof(float), sizeof(float)};
  const PlkLoop *loops = plk_isa_tables()->f32;
  for (int64_t i = 0; i < n; i += TAIL_CHUNK) {
    const int64_t m = plk_min64(TAIL_CHUNK, n - i);
    char *y = (char *)((float *)v->y + at + i);
    if (v->addend) (void)loops[PLK_EW_ADD]((char *const[]){y, y, (char *)(uintptr_t)(v->addend + at + i)}, stride, m, &none);
    if (v->relu) (void)loops[PLK_EW_RELU]((char *const[]){y, y}, stride, m, &none);
  }
}

static PlStatus tail_body(void *ctx, int64_t begin, int64_t end) {
  plk_conv_tail(ctx, begin, end - begin);
  return PL_OK;
}

static PlStatus compute(const PlkConv *v) {
  if (v->dtype > PL_F64) return plk_conv_plain(v);
  const bool empty = plk_conv_numel(v, PLK_CONV_X) == 0 || plk_conv_numel(v, PLK_CONV_W) == 0 || plk_conv_numel(v, PLK_CONV_Y) == 0;
  if (empty) return plk_conv_plain(v);
  bool done = false;
  if (plk_conv_winograd_blocks_pays(v)) return plk_conv_winograd_blocks(v, &done);
  if (plk_conv_winograd_pays(v)) return plk_conv_winograd(v);
  if (turns_round(v)) {
    PL_TRY(turned_round(v, &done));
    if (done) return PL_OK;
  }
  if (v->dtype == PL_F32 && library_pays(v) && !product_pays(v) && plk_onednn_ready()) {
    PL_TRY(plk_conv_onednn(v, &done));
    if (done) return PL_OK;
  }
  return plk_conv_gemm(v);
}

static PlStatus convert(void *dst, PlDtype to, const void *src, PlDtype from, int64_t n) {
  PlkNd walk = {.n = 0};
  plk_nd_dim(&walk, n, 1, 1);
  return plk_nd_cast(dst, to, src, from, &walk);
}

/* x += bias, one value for each of its channels. */
static void bias_of_input(const PlkConv *v, float *x, const float *bias) {
  const int64_t channels = v->g * v->c;
  for (int64_t row = 0; row < v->n * channels; row++) {
    const float b = bias[row % channels];
    for (int64_t i = 0; i < v->insize; i++) x[row * v->insize + i] += b;
  }
}

/* The same of what the library has rounded to bf16. */
static PlStatus bias_of_bf16(PlkConv *v) {
  const PlkConvert *cv = plk_isa_tables()->convert;
  const int64_t channels = v->g * v->c;
  uint16_t *x = v->x;
  const uint16_t *bias = v->bias;
  float part[256], b;
  for (int64_t row = 0; row < v->n * channels; row++) {
    cv->bf16_load(bias + row % channels, &b, 1);
    for (int64_t i = 0, n; i < v->insize; i += n) {
      n = plk_min64(256, v->insize - i);
      cv->bf16_load(x + row * v->insize + i, part, n);
      for (int64_t k = 0; k < n; k++) part[k] += b;
      cv->bf16_store(part, x + row * v->insize + i, n);
    }
  }
  return PL_OK;
}

/* f16 and bf16: the same in f32 scratch. */
static PlStatus compute_half(PlkConv *v) {
  static const int written[3] = {PLK_CONV_Y, PLK_CONV_X, PLK_CONV_W};
  const PlDtype half = v->dtype;
  void **const data[3] = {&v->x, &v->w, &v->y};
  void *const out = *data[written[v->kind]], *mem[4] = {NULL, NULL, NULL, NULL};
  PlStatus s = PL_OK;
  for (int i = 0; i < 3 && s == PL_OK; i++) {
    const int64_t n = plk_conv_numel(v, i);
    s = plk_scratch((size_t)plk_max64(n, 1) * sizeof(float), &mem[i]);
    if (s == PL_OK && i != written[v->kind]) s = convert(mem[i], PL_F32, *data[i], half, n);
    *data[i] = mem[i];
  }
  if (s == PL_OK && v->bias) {
    const int64_t channels = v->g * (v->kind == PLK_CONV_BWD_INPUT ? v->c : v->o);
    s = plk_scratch((size_t)plk_max64(channels, 1) * sizeof(float), &mem[3]);
    if (s == PL_OK) s = convert(mem[3], PL_F32, v->bias, half, channels);
    v->bias = mem[3];
  }
  v->dtype = PL_F32;
  v->kept = NULL;
  if (s == PL_OK) s = compute(v);
  if (s == PL_OK && v->bias && v->kind == PLK_CONV_BWD_INPUT) bias_of_input(v, mem[PLK_CONV_X], mem[3]);
  if (s == PL_OK) s = convert(out, half, mem[written[v->kind]], PL_F32, plk_conv_numel(v, written[v->kind]));
  for (int i = 0; i < 4; i++) plk_scratch_free(mem[i]);
  return s;
}

/* Ways that compute all of y before its tail. */
static PlStatus compute_with_tail(PlkConv *v) {
  if (!v->addend && !v->relu) return compute(v);
  bool done = false;
  if (!plk_conv_winograd_blocks_pays(v) && !plk_conv_winograd_pays(v) && library_pays(v) && plk_conv_numel(v, PLK_CONV_Y) > 0 &&
      plk_onednn_ready()) {
    PL_TRY(plk_conv_onednn(v, &done));
    if (done) return PL_OK;
  }
  PL_TRY(compute(v));
  return plk_parallel(plk_conv_numel(v, PLK_CONV_Y), PLK_GRAIN, tail_body, v);
}

/* ---- blocks of channels ---- */

int64_t plk_conv_block(void) {
  if (!plk_onednn_ready()) return 0;
  const char level = plk_isa()[1]; /* a vector of the library's */
  return level == '4' ? 16 : level == '3' ? 8 : 0;
}

/* By the library, as it lies? */
static bool in_blocks(const PlkConv *v) {
  if (v->dtype != PL_F32 || v->nd != 2 || plk_conv_numel(v, PLK_CONV_Y) == 0 || plk_conv_numel(v, PLK_CONV_X) == 0) return false;
  return !plk_conv_winograd_blocks_pays(v) && !plk_conv_winograd_pays(v) && library_pays(v) && plk_onednn_ready();
}

bool plk_cpu_conv_takes_blocks(const PlkCall *call) {
  PlkConv v;
  describe(&v, PLK_CONV_FWD, call->attrs, call->in[0], call->in[1], call->out[0]);
  bool takes = false;
  if (plk_conv_winograd_blocks_pays(&v)) return true;
  return in_blocks(&v) && plk_conv_onednn_takes(&v, &takes) == PL_OK && takes;
}

PlStatus plk_conv_reblock(float *to, const float *from, int64_t planes, int64_t space, int64_t b, bool into) {
  PlkNd walk = {.n = 0};
  const int64_t whole = b * space;
  plk_nd_dim(&walk, planes / b, whole, whole);
  if (into) {
    plk_nd_dim(&walk, space, b, 1);
    plk_nd_dim(&walk, b, 1, space);
  } else {
    plk_nd_dim(&walk, b, space, 1);
    plk_nd_dim(&walk, space, 1, b);
  }
  return plk_nd_copy(to, from, &walk, sizeof *to);
}

/* Ways that know plain layouts alone. */
static PlStatus compute_blocks(const PlkConv *v) {
  bool done;
  if (plk_conv_winograd_blocks_pays(v)) {
    PL_TRY(plk_conv_winograd_blocks(v, &done));
    return done || (!v->addend && !v->relu) ? PL_OK
                                            : plk_parallel(plk_conv_numel(v, PLK_CONV_Y), PLK_GRAIN, tail_body, (void *)(uintptr_t)v);
  }
  if (in_blocks(v)) {
    PL_TRY(plk_conv_onednn(v, &done));
    if (done) return PL_OK;
  }
  PlkConv f = *v;
  void *mem[2] = {NULL, NULL};
  const int64_t nx = plk_conv_numel(v, PLK_CONV_X), ny = plk_conv_numel(v, PLK_CONV_Y);
  PlStatus s = PL_OK;
  f.xblock = f.yblock = 0, f.addend = NULL, f.relu = false;
  f.kept = NULL; /* it may hold a form that the library made for blocks */
  if (v->xblock) {
    s = plk_scratch((size_t)plk_max64(nx, 1) * sizeof(float), &mem[0]);
    if (s == PL_OK) s = plk_conv_reblock(mem[0], v->x, v->n * v->g * v->c, v->insize, v->xblock, false);
    f.x = mem[0];
  }
  if (s == PL_OK && v->yblock) s = plk_scratch((size_t)plk_max64(ny, 1) * sizeof(float), &mem[1]);
  if (mem[1]) f.y = mem[1];
  if (s == PL_OK) s = compute(&f);
  if (s == PL_OK && v->yblock) s = plk_conv_reblock(v->y, mem[1], v->n * v->g * v->o, v->outsize, v->yblock, true);
  plk_scratch_free(mem[0]);
  plk_scratch_free(mem[1]);
  if (s != PL_OK || (!v->addend && !v->relu)) return s;
  return plk_parallel(ny, PLK_GRAIN, tail_body, (void *)(uintptr_t)v);
}

static PlStatus run(PlkConv *v, const char *name) {
  if (v->dtype == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "%s: bool tensors have no product", name);
  if (v->xblock || v->yblock) return compute_blocks(v);
  if (v->dtype != PL_F16 && v->dtype != PL_BF16) return compute_with_tail(v);
  if (v->dtype == PL_BF16 && library_pays(v) && plk_onednn_bf16()) {
    bool done = false;
    PL_TRY(plk_conv_onednn(v, &done));
    if (done) return v->kind == PLK_CONV_BWD_INPUT && v->bias ? bias_of_bf16(v) : PL_OK;
  }
  return compute_half(v);
}

PlStatus plk_cpu_conv(const PlkCall *call) {
  PlkConv v;
  describe(&v, PLK_CONV_FWD, call->attrs, call->in[0], call->in[1], call->out[0]);
  if (call->nin > 2 && call->in[2]) v.bias = call->in[2]->data;
  if (call->nin > 3) {
    v.addend = call->in[3] ? call->in[3]->data : NULL;
    v.relu = pl_attr_i(call->attrs, 4) != 0;
  }
  if (plk_kept_may(call->kept, 1)) v.kept = call->kept;
  return run(&v, call->name);
}

PlStatus plk_cpu_conv_bwd_input(const PlkCall *call) {
  PlkConv v;
  describe(&v, PLK_CONV_BWD_INPUT, call->attrs, call->out[0], call->in[1], call->in[0]);
  if (call->nin > 2 && call->in[2]) v.bias = call->in[2]->data;
  return run(&v, call->name);
}

PlStatus plk_cpu_conv_bwd_weight(const PlkCall *call) {
  PlkConv v;
  describe(&v, PLK_CONV_BWD_WEIGHT, call->attrs, call->in[1], call->out[0], call->in[0]);
  return run(&v, call->name);
}
