/* SPDX-License-Identifier: MIT
 * Tensors out of attributes: zeros, ones, full, eye, lines, and the index of a diagonal; a few bytes of the host. Values as in
 * kernels/cpu/create/create.c. */
#include "kernels/cuda/any_dtype.h"
extern "C" {
#include "kernels/create.h"
}

struct FewBytes {
  uint8_t b[PLC_FEW_BYTES];
};
__global__ void write_few(uint8_t *dst, FewBytes v, int n) {
  for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) dst[i] = v.b[i];
}
extern "C" PlStatus plc_upload_few(void *dst, const void *src, size_t n) {
  FewBytes v;
  memset(&v, 0, sizeof v);
  memcpy(v.b, src, n);
  PLC_LAUNCH(write_few, 1, 32, 0, (uint8_t *)dst, v, (int)n);
  return PL_OK;
}

__global__ void fill_any(plc_layout<1> l, void *y, int dtype, bool whole, double f, int64_t i) {
  for (PLC_EACH(e, l.numel)) {
    int64_t at[1];
    plc_offsets<1>(l, e, at);
    plc_put_any(y, dtype, at[0], whole, f, i);
  }
}

static PlStatus fill(PlArray *y, bool whole, double f, int64_t i) {
  const PlArray *arr[1] = {y};
  plc_layout<1> l;
  if (y->numel == 0) return PL_OK;
  if (y->contiguous && (whole ? i == 0 : f == 0 && !signbit(f))) {
    PLC_TRY(cudaMemsetAsync(y->data, 0, (size_t)y->numel * pl_dtype_size((PlDtype)y->dtype), plc_stream()));
    return PL_OK;
  }
  plc_layout_of<1>(&l, arr);
  PLC_LAUNCH(fill_any, plc_grid(y->numel, 4), PLC_BLOCK, 0, l, y->data, (int)y->dtype, whole, f, i);
  return PL_OK;
}

static PlStatus zeros(const PlkCall *c) { return fill(c->out[0], true, 0, 0); }
static PlStatus ones(const PlkCall *c) { return fill(c->out[0], true, 0, 1); }
static PlStatus full(const PlkCall *c) { /* the SCALAR attribute at position `code` */
  bool whole = (c->attrs->isint >> c->code) & 1;
  return fill(c->out[0], whole, whole ? 0 : pl_attr_f(c->attrs, c->code), whole ? pl_attr_i(c->attrs, c->code) : 0);
}
PLC_KERNEL(zeros, zeros)
PLC_KERNEL(ones, ones)
PLC_KERNEL(full, full)

__global__ void eye_any(void *y, int dtype, int64_t numel, int64_t columns) {
  for (PLC_EACH(i, numel)) plc_put_any(y, dtype, i, true, 0, i / columns == i % columns);
}
static PlStatus eye(const PlkCall *c) {
  PlArray *y = c->out[0];
  if (y->numel) PLC_LAUNCH(eye_any, plc_grid(y->numel, 1), PLC_BLOCK, 0, y->data, (int)y->dtype, y->numel, y->shape[1]);
  return PL_OK;
}
PLC_KERNEL(eye, eye)

struct Line {
  int kind; /* 0 integers, 1 start + i step, 2 linspace, 3 logspace */
  int64_t istart, istep, n;
  double start, end, step, base;
};

/* The second half counts back from the end, so both ends are exact. */
PLC_DEV double space_at(const Line &l, int64_t i) {
  return i < l.n / 2 ? l.start + (double)i * l.step : l.end - (double)(l.n - 1 - i) * l.step;
}

__global__ void line_any(Line l, void *y, int dtype, int64_t n) {
  for (PLC_EACH(i, n)) {
    if (l.kind == 0) plc_put_any(y, dtype, i, true, 0, (int64_t)((uint64_t)l.istart + (uint64_t)i * (uint64_t)l.istep));
    else if (l.kind == 1) plc_put_any(y, dtype, i, false, l.start + (double)i * l.step, 0);
    else plc_put_any(y, dtype, i, false, l.kind == 2 ? space_at(l, i) : pow(l.base, space_at(l, i)), 0);
  }
}
static PlStatus line(const PlkCall *c, Line l) {
  PlArray *y = c->out[0];
  if (y->numel) PLC_LAUNCH(line_any, plc_grid(y->numel, 1), PLC_BLOCK, 0, l, y->data, (int)y->dtype, y->numel);
  return PL_OK;
}
static double number(const PlAttrs *a, int k) { return (a->isint >> k) & 1 ? (double)a->v[k].i : a->v[k].f; }

static PlStatus linear_fill(const PlkCall *c) {
  const PlAttrs *a = c->attrs;
  bool whole = ((a->isint >> 1) & 1) && ((a->isint >> 2) & 1);
  Line l = {whole ? 0 : 1, a->v[1].i, a->v[2].i, c->out[0]->numel, number(a, 1), 0, number(a, 2), 0};
  return line(c, l);
}
static Line space(const PlkCall *c) {
  Line l = {2, 0, 0, c->out[0]->numel, pl_attr_f(c->attrs, 0), pl_attr_f(c->attrs, 1), 0, 0};
  if (l.n == 1) l.end = l.start;
  l.step = l.n > 1 ? (l.end - l.start) / (double)(l.n - 1) : 0.0;
  return l;
}
static PlStatus linspace(const PlkCall *c) { return line(c, space(c)); }
static PlStatus logspace(const PlkCall *c) {
  Line l = space(c);
  l.kind = 3;
  l.base = pl_attr_f(c->attrs, 3);
  return line(c, l);
}
PLC_KERNEL(linear_fill, linear_fill)
PLC_KERNEL(linspace, linspace)
PLC_KERNEL(logspace, logspace)
