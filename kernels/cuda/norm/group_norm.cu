/* SPDX-License-Identifier: MIT
 * Group norm over x[N,C,S]: the channels of one group of one sample share mean and deviation. Groups are in one piece, so
 * for channels.cu they are channels of one sample; N C rows of S apply the result. */
#include "kernels/cuda/norm/channels.h"
#include "kernels/norm.h"

namespace {

struct Group {
  int64_t N, C, S, G, each; /* each: channels of a group */
};
static Group group_of(const PlkCall *call, const PlArray *x) {
  Group g = {x->shape[0], x->ndim > 1 ? x->shape[1] : 0, 1, pl_attr_i(call->attrs, 0), 0};
  for (int d = 2; d < x->ndim; d++) g.S *= x->shape[d];
  g.each = g.C / g.G;
  return g;
}

/* stat[group]: mean, 1/deviation */
__global__ void group_stat(int64_t groups, int64_t parts, double eps, const double *part, plc_numbers om, plc_numbers orstd, double *stat) {
  for (PLC_EACH(r, groups)) {
    PlcMoments m = plc_moments_total(part, parts, r);
    const double rstd = 1 / sqrt(m.m2 / m.n + eps);
    plc_number_put(om, r, m.mean);
    plc_number_put(orstd, r, rstd);
    stat[r * 2] = m.mean;
    stat[r * 2 + 1] = rstd;
  }
}
__global__ void forward_coef(Group g, const double *stat, plc_numbers w, plc_numbers b, double *coef) {
  for (PLC_EACH(r, g.N * g.C)) {
    const int64_t c = r % g.C;
    coef[r * 4] = stat[r / g.each * 2];
    coef[r * 4 + 1] = stat[r / g.each * 2 + 1] * plc_number(w, c, 1);
    coef[r * 4 + 2] = plc_number(b, c, 0);
  }
}

static PlStatus forward(const PlkCall *call, const Group *g, const PlcChannels *k, double *mem) {
  const PlArray *x = call->in[0];
  double *coef = mem, *stat = coef + g->N * g->C * 4, *part = stat + k->C * 2;
  PL_TRY(plc_channel_moments(k, x->dtype, x->data, part));
  PLC_LAUNCH(group_stat, plc_grid(k->C, 1), PLC_BLOCK, 0, k->C, k->parts, pl_attr_f(call->attrs, 1), part, plc_numbers_of(call->out[1]),
             plc_numbers_of(call->out[2]), stat);
  if (!call->out[0]) return PL_OK;
  PLC_LAUNCH(forward_coef, plc_grid(g->N * g->C, 1), PLC_BLOCK, 0, *g, stat, plc_numbers_of(call->in[1]), plc_numbers_of(call->in[2]),
             coef);
  PlcChannels rows = {1, g->N * g->C, g->S, 1};
  return plc_channel_affine(&rows, x->dtype, x->data, coef, call->out[0]->data);
}

static PlStatus group_norm(const PlkCall *call) {
  const Group g = group_of(call, call->in[0]);
  const PlcChannels k = plc_channels(1, g.N * g.G, g.each * g.S);
  void *mem;
  if (g.N == 0) return PL_OK;
  PL_TRY(plc_scratch((size_t)(g.N * g.C * 4 + k.C * (2 + k.parts * 3)) * sizeof(double), &mem));
  PlStatus s = forward(call, &g, &k, (double *)mem);
  plc_scratch_free(mem);
  return s;
}

/* ---- gradients -------------------------------------------------------------------------------------------------------------- */

__global__ void means_of(int64_t n, plc_numbers from, double *to) {
  for (PLC_EACH(c, n)) to[c] = plc_number(from, c, 0);
}

/* dx = rstd (g - mean g - h mean(g h)) with h = (x - mean) rstd, g = w dy: one thread a channel of a sample. */
__global__ void backward_coef(Group g, int64_t parts, const double *part, const double *mean, plc_numbers rstds, plc_numbers w,
                              double *coef) {
  for (PLC_EACH(r, g.N * g.C)) {
    const int64_t row = r / g.each, first = row * g.each;
    const double rstd = plc_number(rstds, row, 0), n = (double)(g.each * g.S);
    double sg = 0, sgh = 0, s1, s2;
    for (int64_t j = first; j < first + g.each; j++) {
      const double wj = plc_number(w, j % g.C, 1);
      plc_dots_total(part, parts, j, &s1, &s2);
      sg += wj * s1;
      sgh += wj * s2;
    }
    coef[r * 4] = mean[row];
    coef[r * 4 + 1] = rstd * plc_number(w, r % g.C, 1);
    coef[r * 4 + 2] = plc_root(-rstd * rstd * rstd * sgh / n);
    coef[r * 4 + 3] = -rstd * sg / n;
  }
}
__global__ void parameters(Group g, int64_t parts, const double *part, plc_numbers rstds, plc_numbers dw, plc_numbers db) {
  for (PLC_EACH(c, g.C)) {
    double w = 0, b = 0, s1, s2;
    for (int64_t n = 0; n < g.N; n++) {
      plc_dots_total(part, parts, n * g.C + c, &s1, &s2);
      w += s2 * plc_number(rstds, (n * g.C + c) / g.each, 0);
      b += s1;
    }
    plc_number_put(dw, c, w);
    plc_number_put(db, c, b);
  }
}

static PlStatus backward(const PlkCall *call, const Group *g, const PlcChannels *k, const void *dy, double *mem) {
  const PlArray *const *in = call->in, *x = in[1];
  const int64_t rows = g->N * g->C, groups = g->N * g->G;
  double *coef = mem, *mean = coef + rows * 4, *part = mean + groups;
  if (rows > 0) {
    PLC_LAUNCH(means_of, plc_grid(groups, 1), PLC_BLOCK, 0, groups, plc_numbers_of(in[2]), mean);
    PL_TRY(plc_channel_dots(k, x->dtype, dy, x->data, mean, g->each, part));
  }
  if (call->out[1] || call->out[2])
    PLC_LAUNCH(parameters, plc_grid(g->C, 1), PLC_BLOCK, 0, *g, k->parts, part, plc_numbers_of(in[3]), plc_numbers_of(call->out[1]),
               plc_numbers_of(call->out[2]));
  if (!call->out[0] || rows == 0) return PL_OK;
  PLC_LAUNCH(backward_coef, plc_grid(rows, 1), PLC_BLOCK, 0, *g, k->parts, part, mean, plc_numbers_of(in[3]), plc_numbers_of(in[4]), coef);
  return plc_channel_affine2(k, x->dtype, dy, x->data, coef, call->out[0]->data);
}

static PlStatus group_norm_bwd(const PlkCall *call) {
  const Group g = group_of(call, call->in[1]);
  const PlcChannels k = plc_channels(1, g.N * g.C, g.S);
  void *mem, *copy;
  const void *dy;
  PL_TRY(plc_as(call->in[0], call->in[1]->dtype, &copy, &dy));
  PlStatus s = plc_scratch((size_t)(g.N * g.C * (4 + k.parts * 2) + g.N * g.G + 1) * sizeof(double), &mem);
  if (s == PL_OK) {
    s = backward(call, &g, &k, dy, (double *)mem);
    plc_scratch_free(mem);
  }
  plc_scratch_free(copy);
  return s;
}

} // namespace

PLC_KERNEL(group_norm, group_norm)
PLC_KERNEL(group_norm_bwd, group_norm_bwd)
