/* SPDX-License-Identifier: MIT
 * Convolution (kernels/conv.h) without cuDNN: windows are laid out as the columns of a matrix, and products do the rest.
 *   y[n] = w cols(x[n]) + bias;  dx[n] = fold(wᵀ dy[n]);  dw = Σ_n dy[n] cols(x[n])ᵀ      per group of channels
 * fold gathers for each input position the windows that it is in, so there are no atomics. As many images at once as fit
 * into 256 MiB of columns. The columns that fold adds up are f32 for f16 and bf16: sums are rounded once. */
#include "kernels/cuda/device.h"
#include "kernels/elementwise_codes.h"

#define COLUMN_BYTES ((int64_t)256 << 20)

struct Conv {
  int64_t N, C, O, groups;
  int64_t in[3], out[3], k[3], stride[3], pad[3], dil[3]; /* missing leading dims: 1 */
  int64_t K, P, X;                                        /* elements of a window of all channels, of outputs, of inputs */
};

/* col[n, (c, k), t] = x[n, c, t stride - pad + k dil], 0 outside. One thread an element. */
template <typename T> __global__ void unfold(Conv v, int64_t images, const T *x, T *col) {
  for (PLC_EACH(i, images * v.K * v.P)) {
    int64_t t = i % v.P, r = i / v.P % v.K, n = i / v.P / v.K, at = 0, step = 1, c = r;
    bool inside = true;
    for (int d = 2; d >= 0; d--) {
      int64_t p = t % v.out[d] * v.stride[d] - v.pad[d] + c % v.k[d] * v.dil[d];
      t /= v.out[d];
      c /= v.k[d];
      inside = inside && p >= 0 && p < v.in[d];
      at += p * step;
      step *= v.in[d];
    }
    T zero;
    memset(&zero, 0, sizeof zero);
    col[i] = inside ? x[(n * v.C + c) * v.X + at] : zero;
  }
}

/* dx[n, c, p] = Σ col[n, (c, k), t] over k, t with t stride - pad + k dil = p, in one order, and a bias[c] where there is one. */
template <typename T, typename A> __global__ void fold(Conv v, int64_t images, const A *col, const T *bias, T *dx) {
  for (PLC_EACH(i, images * v.C * v.X)) {
    int64_t p[3], rest = i;
    for (int d = 2; d >= 0; d--) {
      p[d] = rest % v.in[d] + v.pad[d];
      rest /= v.in[d];
    }
    const A *from = col + rest * (v.K / v.C) * v.P; /* rest: image and channel */
    A sum = 0;
    for (int64_t k0 = 0; k0 < v.k[0]; k0++) {
      const int64_t a = p[0] - k0 * v.dil[0];
      if (a < 0 || a % v.stride[0] || a / v.stride[0] >= v.out[0]) continue;
      for (int64_t k1 = 0; k1 < v.k[1]; k1++) {
        const int64_t b = p[1] - k1 * v.dil[1];
        if (b < 0 || b % v.stride[1] || b / v.stride[1] >= v.out[1]) continue;
        for (int64_t k2 = 0; k2 < v.k[2]; k2++) {
          const int64_t c = p[2] - k2 * v.dil[2];
          if (c < 0 || c % v.stride[2] || c / v.stride[2] >= v.out[2]) continue;
          const int64_t k = (k0 * v.k[1] + k1) * v.k[2] + k2;
          const int64_t t = (a / v.stride[0] * v.out[1] + b / v.stride[1]) * v.out[2] + c / v.stride[2];
          sum += from[k * v.P + t];
        }
      }
    }
    if (bias) sum += plc_type<T>::load(bias[rest % v.C]);
    dx[i] = plc_type<T>::store(sum);
  }
}

/* ---- what a call is ------------------------------------------------------------------------------------------------ */

static Conv conv_of(const PlkCall *call, const PlArray *x, const PlArray *w, const PlArray *y) {
  Conv v;
  memset(&v, 0, sizeof v);
  const int nd = x->ndim - 2;
  v.N = x->shape[0], v.C = x->shape[1], v.O = w->shape[0], v.groups = pl_attr_i(call->attrs, 3);
  v.P = v.X = 1;
  v.K = v.C;
  for (int d = 0; d < 3; d++) {
    const int at = d - (3 - nd);
    v.in[d] = at < 0 ? 1 : x->shape[2 + at];
    v.out[d] = at < 0 ? 1 : y->shape[2 + at];
    v.k[d] = at < 0 ? 1 : w->shape[2 + at];
    v.stride[d] = at < 0 ? 1 : pl_attr_list(call->attrs, 0)[at];
    v.pad[d] = at < 0 ? 0 : pl_attr_list(call->attrs, 1)[at];
    v.dil[d] = at < 0 ? 1 : pl_attr_list(call->attrs, 2)[at];
    v.K *= v.k[d], v.P *= v.out[d], v.X *= v.in[d];
  }
  return v;
}

static int64_t images_at_once(const Conv *v, int dtype) {
  const int64_t each = v->K * v->P * (int64_t)pl_dtype_size((PlDtype)dtype), fit = each > 0 ? COLUMN_BYTES / each : v->N;
  return fit < 1 ? 1 : fit < v->N ? fit : v->N;
}

static char *element(const PlArray *a, int64_t i) { return (char *)a->data + i * (int64_t)pl_dtype_size((PlDtype)a->dtype); }

static PlStatus columns(const Conv *v, int64_t images, const PlArray *x, int64_t first, void *col) {
  PLC_BITS(x->dtype, T,
           PLC_LAUNCH(unfold<T>, plc_grid(images * v->K * v->P, 4), PLC_BLOCK, 0, *v, images, (const T *)element(x, first * v->C * v->X),
                      (T *)col))
  return PL_OK;
}

static PlStatus folded(const Conv *v, int64_t images, const void *col, const PlArray *bias, PlArray *dx, int64_t first) {
  PLC_TYPES(dx->dtype, T, "conv_bwd_input",
            PLC_LAUNCH((fold<T, plc_type<T>::math>), plc_grid(images * v->C * v->X, 1), PLC_BLOCK, 0, *v, images,
                       (const plc_type<T>::math *)col, (const T *)(bias ? bias->data : NULL), (T *)element(dx, first * v->C * v->X)))
  return PL_OK;
}

static PlStatus zero(PlArray *a) {
  if (a->numel > 0) PLC_TRY(cudaMemsetAsync(a->data, 0, (size_t)a->numel * pl_dtype_size((PlDtype)a->dtype), plc_stream()));
  return PL_OK;
}

static PlStatus elementwise(const char *name, int code, const PlArray *a, const PlArray *b, PlArray *y, const PlAttrs *attrs) {
  const PlArray *in[2] = {a, b};
  PlArray *out[1] = {y};
  PlkCall k;
  memset(&k, 0, sizeof k);
  k.name = name, k.code = code, k.nin = b ? 2 : 1, k.nout = 1, k.in = in, k.out = out, k.attrs = attrs;
  return plc_run(&plc_kernel_elementwise, &k);
}

/* y = bias of each channel: what the product is added to, so that sums are rounded once. */
static PlStatus spread_bias(const PlArray *bias, PlArray *y) {
  static const PlAttrs none = {};
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM];
  PlArray b = *bias;
  b.ndim = (uint8_t)(y->ndim - 1);
  for (int d = 0; d < b.ndim; d++) shape[d] = d == 0 ? bias->shape[0] : 1, strides[d] = d == 0 ? bias->strides[0] : 1;
  b.shape = shape, b.strides = strides, b.contiguous = 0;
  return elementwise("copy", PLK_EW_COPY, &b, NULL, y, &none);
}

/* ---- the three directions ---------------------------------------------------------------------------------------------- */

enum Direction { FORWARD, INPUT, WEIGHT };

static PlDtype column_type(Direction what, int dtype) {
  return what == INPUT && (dtype == PL_F16 || dtype == PL_BF16) ? PL_F32 : (PlDtype)dtype;
}

/* Products of `images` images from `first` on with their columns, group by group. */
static PlStatus products(const Conv *v, Direction what, int64_t images, int64_t first, void *col, const PlArray *w, const PlArray *y,
                         bool adds) {
  const int64_t o = v->O / v->groups, k = v->K / v->groups, item = (int64_t)pl_dtype_size((PlDtype)y->dtype);
  const int64_t w_item = (int64_t)pl_dtype_size((PlDtype)w->dtype);
  const int64_t col_item = (int64_t)pl_dtype_size(column_type(what, y->dtype));
  for (int64_t g = 0; g < v->groups; g++) {
    char *wg = (char *)w->data + g * o * k * w_item, *cg = (char *)col + g * k * v->P * col_item;
    char *yg = element(y, (first * v->O + g * o) * v->P);
    PlcGemm p;
    memset(&p, 0, sizeof p);
    p.dtype = p.result = (PlDtype)y->dtype;
    p.batch = images;
    p.alpha = 1;
    if (what == FORWARD) { /* y[o, P] = w[o, k] col[k, P] (+ y) */
      p.beta = adds;
      p.m = o, p.n = v->P, p.k = k, p.a = wg, p.b = cg, p.c = yg;
      p.lda = k, p.ldb = p.ldc = v->P, p.sb = v->K * v->P, p.sc = v->O * v->P;
    } else if (what == INPUT) { /* col[k, P] = wᵀ[k, o] dy[o, P] */
      p.m = k, p.n = v->P, p.k = o, p.a = wg, p.ta = true, p.b = yg, p.c = cg;
      p.lda = k, p.ldb = p.ldc = v->P, p.sb = v->O * v->P, p.sc = v->K * v->P, p.result = column_type(what, y->dtype);
    } else { /* dw[o, k] += dy[o, P] colᵀ[P, k], image by image */
      p.m = o, p.n = k, p.k = v->P, p.tb = true, p.c = wg, p.batch = 1, p.beta = 1, p.result = (PlDtype)w->dtype;
      p.lda = p.ldb = v->P, p.ldc = k;
      for (int64_t n = 0; n < images; n++) {
        p.a = yg + n * v->O * v->P * item, p.b = cg + n * v->K * v->P * col_item;
        PL_TRY(plc_gemm(&p));
      }
      continue;
    }
    PL_TRY(plc_gemm(&p));
  }
  return PL_OK;
}

/* bias: added to y before (FORWARD) or to x behind (INPUT). */
static PlStatus walk(const Conv *v, Direction what, const PlArray *x, const PlArray *w, const PlArray *y, const PlArray *bias) {
  const PlDtype type = column_type(what, x->dtype);
  const int64_t most = images_at_once(v, type);
  void *col = NULL;
  PL_TRY(plc_scratch((size_t)(most * v->K * v->P) * pl_dtype_size(type), &col));
  PlStatus s = PL_OK;
  for (int64_t n = 0; n < v->N && s == PL_OK; n += most) {
    const int64_t images = v->N - n < most ? v->N - n : most;
    if (what != INPUT) s = columns(v, images, x, n, col);
    if (s == PL_OK) s = products(v, what, images, n, col, w, y, bias != NULL);
    if (s == PL_OK && what == INPUT) s = folded(v, images, col, bias, (PlArray *)x, n);
  }
  plc_scratch_free(col);
  return s;
}

static PlStatus conv_rows(const PlkCall *call) {
  PlArray *y = call->out[0];
  const Conv v = conv_of(call, call->in[0], call->in[1], y);
  if (y->numel == 0) return PL_OK;
  const PlArray *bias = call->nin > 2 ? call->in[2] : NULL;
  if (bias) PL_TRY(spread_bias(bias, y));
  else if (v.K == 0) PL_TRY(zero(y));
  return v.K == 0 ? PL_OK : walk(&v, FORWARD, call->in[0], call->in[1], y, bias);
}

static PlStatus conv_bwd_input_rows(const PlkCall *call) {
  PlArray *dx = call->out[0];
  const Conv v = conv_of(call, dx, call->in[1], call->in[0]);
  if (dx->numel == 0) return PL_OK;
  const PlArray *bias = call->nin > 2 ? call->in[2] : NULL; /* of conv_transpose, dense */
  if (v.P == 0 || v.O == 0) return bias ? spread_bias(bias, dx) : zero(dx);
  return walk(&v, INPUT, dx, call->in[1], call->in[0], bias);
}

/* The sum over images of f16 and bf16 runs in f32 and is rounded once. */
static PlStatus narrow_weight(const Conv *v, const PlArray *x, PlArray *dw, const PlArray *dy) {
  static const PlAttrs none = {};
  PlArray sum = *dw;
  sum.dtype = PL_F32;
  PL_TRY(plc_scratch((size_t)dw->numel * sizeof(float), &sum.data));
  PlStatus s = zero(&sum);
  if (s == PL_OK) s = walk(v, WEIGHT, x, &sum, dy, NULL);
  if (s == PL_OK) s = elementwise("cast", PLK_EW_CAST, &sum, NULL, dw, &none);
  plc_scratch_free(sum.data);
  return s;
}

static PlStatus conv_bwd_weight_rows(const PlkCall *call) {
  const PlArray *dy = call->in[0], *x = call->in[1];
  PlArray *dw = call->out[0];
  const Conv v = conv_of(call, x, dw, dy);
  if (dw->numel == 0) return PL_OK;
  if (v.N == 0 || v.P == 0) return zero(dw);
  if (dw->dtype == PL_F16 || dw->dtype == PL_BF16) return narrow_weight(&v, x, dw, dy);
  PL_TRY(zero(dw));
  return walk(&v, WEIGHT, x, dw, dy, NULL);
}

/* ---- channels last: through row-major copies --------------------------------------------------------------------------- */

static PlStatus dense_of(const PlArray *from, PlArray *to, int64_t *strides) {
  int64_t step = 1;
  for (int d = from->ndim - 1; d >= 0; d--) {
    strides[d] = step;
    step *= from->shape[d];
  }
  *to = *from;
  to->strides = strides;
  to->contiguous = 1;
  return plc_scratch((size_t)(from->numel + 1) * pl_dtype_size((PlDtype)from->dtype), &to->data);
}

static PlStatus row_major(const PlkCall *call, PlKernel kernel) {
  static const PlAttrs none = {};
  PlArray dense[4], *y = call->out[0], *out[1] = {y};
  const PlArray *in[3] = {NULL, NULL, NULL};
  int64_t strides[4][PL_MAX_DIM];
  void *made[4] = {NULL, NULL, NULL, NULL};
  PlStatus s = PL_OK;
  PlkCall k = *call;
  k.in = in, k.out = out;
  for (int i = 0; i < call->nin && i < 3 && s == PL_OK; i++) {
    in[i] = call->in[i];
    if (!in[i] || in[i]->contiguous) continue;
    s = dense_of(call->in[i], &dense[i], strides[i]);
    if (s != PL_OK) break;
    made[i] = dense[i].data;
    in[i] = &dense[i];
    s = elementwise("copy", PLK_EW_COPY, call->in[i], NULL, &dense[i], &none);
  }
  if (s == PL_OK && !y->contiguous) {
    s = dense_of(y, &dense[3], strides[3]);
    if (s == PL_OK) made[3] = dense[3].data, out[0] = &dense[3];
  }
  if (s == PL_OK) s = kernel(&k);
  if (s == PL_OK && made[3]) s = elementwise("copy", PLK_EW_COPY, &dense[3], NULL, y, &none);
  for (int i = 0; i < 4; i++) plc_scratch_free(made[i]);
  return s;
}

static PlStatus conv(const PlkCall *call) { return row_major(call, conv_rows); }
static PlStatus conv_bwd_input(const PlkCall *call) { return row_major(call, conv_bwd_input_rows); }
static PlStatus conv_bwd_weight(const PlkCall *call) { return row_major(call, conv_bwd_weight_rows); }

PLC_KERNEL(conv, conv)
PLC_KERNEL(conv_bwd_input, conv_bwd_input)
PLC_KERNEL(conv_bwd_weight, conv_bwd_weight)
