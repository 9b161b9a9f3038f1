/* SPDX-License-Identifier: MIT
 * Batch norm over x[N,C,S]: all numbers of a channel share mean and deviation. The formulas are those of
 * kernels/cpu/norm/batch_norm.c; sums and passes over x are channels.cu. */
#include "kernels/cuda/norm/channels.h"
#include "kernels/elementwise_codes.h"
#include "kernels/norm.h"

namespace {

/* A warp a channel. */
__global__ void forward_coef(PlcChannels k, bool training, double eps, const double *part, plc_numbers rm, plc_numbers rv, plc_numbers w,
                             plc_numbers b, plc_numbers om, plc_numbers ov, double *coef) {
  for (PLC_EACH(t, k.C * 32)) {
    const int64_t c = t / 32;
    double mean = plc_number(rm, c, 0), var = plc_number(rv, c, 0);
    if (training) {
      PlcMoments m = plc_moments_warp(part, k.parts, c, (int)(t % 32));
      mean = m.mean;
      var = m.m2 / m.n;
    }
    if (t % 32) continue;
    plc_number_put(om, c, mean);
    plc_number_put(ov, c, var);
    coef[c * 4] = mean;
    coef[c * 4 + 1] = plc_number(w, c, 1) / sqrt(var + eps);
    coef[c * 4 + 2] = plc_number(b, c, 0);
  }
}

/* Channels last every position is a sample of its own. */
static PlcChannels channels_of(const PlArray *x) {
  int64_t S = 1;
  for (int d = 2; d < x->ndim; d++) S *= x->shape[d];
  if (!x->contiguous || (x->ndim > 1 && S == 1)) return plc_columns(x->shape[0] * S, x->shape[1], x->dtype);
  return plc_channels(x->shape[0], x->ndim > 1 ? x->shape[1] : 0, S);
}
static bool in_columns(const PlcChannels *k, const PlArray *x, const void *dy, const void *y) {
  return k->S == 1 && plc_columns_fit(k->C, x->dtype, x->data, dy, y);
}

static PlStatus moments(const PlcChannels *k, const PlArray *x, double *part) {
  if (in_columns(k, x, NULL, NULL)) return plc_column_moments(k, x->dtype, x->data, part);
  return plc_channel_moments(k, x->dtype, x->data, part);
}
static PlStatus dots(const PlcChannels *k, const PlArray *x, const void *dy, const double *mean, double *part) {
  if (in_columns(k, x, dy, NULL)) return plc_column_dots(k, x->dtype, dy, x->data, mean, part);
  return plc_channel_dots(k, x->dtype, dy, x->data, mean, 1, part);
}
static PlStatus affine(const PlcChannels *k, const PlArray *x, const void *data, const double *coef, void *y) {
  if (k->S == 1 && plc_columns_fit(k->C, x->dtype, data, y, NULL)) return plc_column_affine(k, x->dtype, data, coef, y);
  return plc_channel_affine(k, x->dtype, data, coef, y);
}
static PlStatus affine2(const PlcChannels *k, const PlArray *x, const void *dy, const double *coef, void *dx) {
  if (in_columns(k, x, dy, dx)) return plc_column_affine2(k, x->dtype, dy, x->data, coef, dx);
  return plc_channel_affine2(k, x->dtype, dy, x->data, coef, dx);
}

static PlStatus forward(const PlkCall *call, const PlcChannels *k, double *mem) {
  const PlArray *const *in = call->in, *x = in[0];
  const bool training = pl_attr_i(call->attrs, 0) != 0;
  double *coef = mem, *part = mem + k->C * 4;
  if (training) PL_TRY(moments(k, x, part));
  PLC_LAUNCH(forward_coef, plc_grid(k->C * 32, 1), PLC_BLOCK, 0, *k, training, pl_attr_f(call->attrs, 1), part, plc_numbers_of(in[1]),
             plc_numbers_of(in[2]), plc_numbers_of(in[3]), plc_numbers_of(in[4]), plc_numbers_of(call->out[1]),
             plc_numbers_of(call->out[2]), coef);
  if (!call->out[0]) return PL_OK;
  if (call->code == PLK_NORM_RELU) {
    const void *r = in[5] ? in[5]->data : NULL;
    if (k->S != 1 || !plc_columns_fit(k->C, x->dtype, x->data, r, call->out[0]->data))
      PL_FAIL(PL_ERR_UNSUPPORTED, "batch_norm: relu is only behind images in packs of 16 bytes");
    return plc_column_affine_relu(k, x->dtype, x->data, coef, r, call->out[0]->data);
  }
  return affine(k, x, x->data, coef, call->out[0]->data);
}

static PlStatus batch_norm(const PlkCall *call) {
  const PlcChannels k = channels_of(call->in[0]);
  void *mem;
  if (k.C == 0) return PL_OK;
  PL_TRY(plc_scratch((size_t)(k.C * (4 + k.parts * 3)) * sizeof(double), &mem));
  PlStatus s = forward(call, &k, (double *)mem);
  plc_scratch_free(mem);
  return s;
}

/* ---- gradients ------------------------------------------------------------------------------------------------------------ */

__global__ void means_of(int64_t n, plc_numbers from, double *to) {
  for (PLC_EACH(c, n)) to[c] = plc_number(from, c, 0);
}

/* With h = (x - mean) rstd, g = w dy:  dx = rstd (g - mean g - h mean(g h)), dw = Σ dy h, db = Σ dy. */
__global__ void backward_coef(PlcChannels k, bool training, double eps, const double *part, const double *mean, plc_numbers var,
                              plc_numbers w, plc_numbers dw, plc_numbers db, double *coef) {
  const double m = (double)(k.N * k.S);
  for (PLC_EACH(t, k.C * 32)) {
    const int64_t c = t / 32;
    const double rstd = 1 / sqrt(plc_number(var, c, 0) + eps), a = plc_number(w, c, 1) * rstd;
    double s1, s2;
    plc_dots_warp(part, k.parts, c, (int)(t % 32), &s1, &s2);
    if (t % 32) continue;
    plc_number_put(dw, c, s2 * rstd);
    plc_number_put(db, c, s1);
    coef[c * 4] = training ? mean[c] : 0;
    coef[c * 4 + 1] = a;
    coef[c * 4 + 2] = training ? plc_root(-a * rstd * rstd * s2 / m) : 0;
    coef[c * 4 + 3] = training ? -a * s1 / m : 0;
  }
}

static PlStatus backward(const PlkCall *call, const PlcChannels *k, const void *dy, double *mem) {
  const PlArray *const *in = call->in, *x = in[1];
  const bool training = pl_attr_i(call->attrs, 0) != 0;
  double *coef = mem, *mean = mem + k->C * 4, *part = mean + k->C;
  PLC_LAUNCH(means_of, plc_grid(k->C, 1), PLC_BLOCK, 0, k->C, plc_numbers_of(in[2]), mean);
  PL_TRY(dots(k, x, dy, mean, part));
  PLC_LAUNCH(backward_coef, plc_grid(k->C * 32, 1), PLC_BLOCK, 0, *k, training, pl_attr_f(call->attrs, 2), part, mean,
             plc_numbers_of(in[3]), plc_numbers_of(in[4]), plc_numbers_of(call->out[1]), plc_numbers_of(call->out[2]), coef);
  if (!call->out[0]) return PL_OK;
  if (training) return affine2(k, x, dy, coef, call->out[0]->data);
  return affine(k, x, dy, coef, call->out[0]->data);
}

/* x, which is dense, in another dtype and the same order. */
static PlStatus as_stored(const PlArray *x, int dtype, void **scratch, const void **data) {
  static const PlAttrs none = {};
  PlArray y = *x;
  const PlArray *in[1] = {x};
  PlArray *out[1] = {&y};
  *scratch = NULL;
  *data = x->data;
  if (x->dtype == dtype) return PL_OK;
  PL_TRY(plc_scratch((size_t)(x->numel + 1) * pl_dtype_size((PlDtype)dtype), scratch));
  y.data = *scratch, y.dtype = (uint8_t)dtype;
  *data = *scratch;
  PlkCall k;
  memset(&k, 0, sizeof k);
  k.name = "cast", k.code = PLK_EW_CAST, k.nin = 1, k.nout = 1, k.in = in, k.out = out, k.attrs = &none;
  return plc_run(&plc_kernel_elementwise, &k);
}

static PlStatus batch_norm_bwd(const PlkCall *call) {
  const PlcChannels k = channels_of(call->in[1]);
  void *mem, *copy;
  const void *dy;
  if (k.C == 0) return PL_OK;
  PL_TRY(as_stored(call->in[0], call->in[1]->dtype, &copy, &dy));
  PlStatus s = plc_scratch((size_t)(k.C * (5 + k.parts * 2)) * sizeof(double), &mem);
  if (s == PL_OK) {
    s = backward(call, &k, dy, (double *)mem);
    plc_scratch_free(mem);
  }
  plc_scratch_free(copy);
  return s;
}

/* running = (1 - momentum) running + momentum factor stat */
__global__ void update(int64_t n, double m, double f, plc_numbers run, plc_numbers stat) {
  for (PLC_EACH(i, n)) plc_number_put(run, i, (1 - m) * plc_number(run, i, 0) + m * f * plc_number(stat, i, 0));
}

static PlStatus running_update(const PlkCall *call) {
  PlArray *run = call->out[0];
  if (run->numel == 0) return PL_OK;
  PLC_LAUNCH(update, plc_grid(run->numel, 1), PLC_BLOCK, 0, run->numel, pl_attr_f(call->attrs, 0), plk_running_factor(call->attrs),
             plc_numbers_of(run), plc_numbers_of(call->in[1]));
  return PL_OK;
}

} // namespace

PLC_KERNEL(batch_norm, batch_norm)
PLC_KERNEL(batch_norm_bwd, batch_norm_bwd)
PLC_KERNEL(running_update, running_update)
