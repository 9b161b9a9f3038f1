/* SPDX-License-Identifier: MIT
 * Max, average and adaptive pooling over 1 to 3 trailing spatial dims; leading dims are batch and channels (the
 * batch may be missing). Max pooling keeps 0-based positions within the plane of x for the gradient (a hidden
 * output), and returns them from index_base on if asked. */
#include <string.h>

#include "engine/ops/make.h"
#include "engine/ops/names.h"
#include "engine/ops/nn/conv_pool_attrs.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
#include "kernels/pool.h"

enum { KERNEL, STRIDE, PADDING, MAX_DILATION, MAX_CEIL, MAX_RETURN, MAX_BASE, MAX_SIZES = 5 /* in max_pool_bwd */ };
/* Outputs of max pooling; INDICES are the caller's, PLACES the gradient's. */
enum { VALUES, INDICES, PLACES };
/* avg_pool as users see it (PyTorch's order); the kernel has the two flags the other way round. */
enum { AVG_CEIL = 3, AVG_INCLUDE, AVG_DIVISOR, AVG_DILATION, AVG_SIZES /* in avg_pool_bwd */ };

/* With a batch. Integers take other ways through kernels. */
static void may_follow(PlInfer *c, int nd) {
  if (c->in[0]->ndim == nd + 2 && pl_is_float((PlDtype)c->in[0]->dtype)) c->out[0].layout = PL_MAY_FOLLOW;
}

static PlStatus check_rank(const PlInfer *c, const PlArray *x, int nd) {
  PL_TRY(pl_check_ndim(c, 0, nd + 1, nd + 2));
  for (int d = 0; d < x->ndim; d++)
    if (x->shape[d] == 0 && !(d == 0 && x->ndim == nd + 2))
      PL_FAIL(PL_ERR_SHAPE, "%s: %s: only the batch may be empty", c->op->name, pl_desc_text(x));
  return PL_OK;
}

/* Padding: one number, nd, or 2 nd, those before all dims and then those behind, as ONNX has them. */
static PlStatus read_padding(const char *op, const PlAttrs *a, PlGeometry *v) {
  const int nd = v->nd;
  int64_t both[6];
  if (pl_attr_n(a, PADDING) != 2 * nd) {
    PL_TRY(pl_spatial_list(op, "padding", a, PADDING, nd, 0, v->pad));
    memcpy(v->end, v->pad, sizeof v->pad);
    return PL_OK;
  }
  PL_TRY(pl_spatial_list(op, "padding", a, PADDING, 2 * nd, 0, both));
  memcpy(v->pad, both, (size_t)nd * sizeof *both);
  memcpy(v->end, both + nd, (size_t)nd * sizeof *both);
  return PL_OK;
}

/* Windows of max and avg pooling; stride none: the kernel's size. dilation: its attribute. */
static PlStatus read_pool(const char *op, const PlAttrs *a, int nd, int dilation, PlGeometry *v) {
  v->nd = nd;
  PL_TRY(pl_spatial_list(op, "kernel_size", a, KERNEL, nd, 1, v->kernel));
  if (pl_attr_has(a, STRIDE) && pl_attr_n(a, STRIDE)) PL_TRY(pl_spatial_list(op, "stride", a, STRIDE, nd, 1, v->stride));
  else memcpy(v->stride, v->kernel, sizeof v->kernel);
  PL_TRY(read_padding(op, a, v));
  PL_TRY(pl_spatial_list(op, "dilation", a, dilation, nd, 1, v->dil));
  const bool apart = pl_attr_n(a, PADDING) == 2 * nd;
  for (int d = 0; d < nd; d++) {
    __int128 window = (__int128)(v->kernel[d] - 1) * v->dil[d] + 1;
    if (window > INT64_MAX)
      PL_FAIL(PL_ERR_ARG, "%s: kernel_size %lld with dilation %lld is too large", op, (long long)v->kernel[d], (long long)v->dil[d]);
    const int64_t most = v->pad[d] > v->end[d] ? v->pad[d] : v->end[d];
    if (apart && most >= window)
      PL_FAIL(PL_ERR_ARG, "%s: padding %lld must be less than the window %lld", op, (long long)most, (long long)window);
    if (!apart && most > window / 2)
      PL_FAIL(PL_ERR_ARG, "%s: padding %lld is more than half of the window %lld", op, (long long)most, (long long)window);
  }
  return PL_OK;
}

static PlStatus pooled_sizes(const PlInfer *c, const PlGeometry *v, bool ceil_mode, int64_t *y) {
  const PlArray *x = c->in[0];
  int lead = x->ndim - v->nd;
  for (int d = 0; d < lead; d++) y[d] = x->shape[d];
  for (int d = 0; d < v->nd; d++) {
    int64_t n = pl_window_count(x->shape[lead + d], v->kernel[d], v->stride[d], v->pad[d], v->end[d], v->dil[d], ceil_mode);
    if (n < 1)
      PL_FAIL(PL_ERR_SHAPE, "%s: %s: the window of %lld does not fit spatial dim %d; use padding or ceil_mode", c->op->name,
              pl_desc_text(x), (long long)v->kernel[d], d + 1);
    y[lead + d] = n;
  }
  return PL_OK;
}

static double pool_flops(const PlInfer *c) {
  double n = 1;
  for (int d = 0; d < c->out[0].ndim; d++) n *= (double)c->out[0].shape[d];
  for (int k = 0; k < pl_attr_n(c->attrs, KERNEL); k++) n *= (double)pl_attr_list(c->attrs, KERNEL)[k];
  return n;
}

/* ---- max -------------------------------------------------------------------------------------------------- */

/* Kernels always get the padding of both ends. */
static void kernel_padding(PlAttrs *a, const PlGeometry *v) {
  int64_t both[6];
  memcpy(both, v->pad, (size_t)v->nd * sizeof *both);
  memcpy(both + v->nd, v->end, (size_t)v->nd * sizeof *both);
  pl_kernel_list(a, PADDING, 2 * v->nd, both);
}

static void max_attrs(const PlGeometry *v, const PlAttrs *user, PlAttrs *a) {
  *a = (PlAttrs){.nval = 5};
  pl_kernel_list(a, KERNEL, v->nd, v->kernel);
  pl_kernel_list(a, STRIDE, v->nd, v->stride);
  kernel_padding(a, v);
  pl_kernel_list(a, MAX_DILATION, v->nd, v->dil);
  pl_kernel_int(a, MAX_CEIL, pl_attr_i(user, MAX_CEIL));
}

/* Positions look like the values; those for the caller exist only where attribute k asks for them. */
static void index_outputs(PlInfer *c, int k) {
  for (int o = INDICES; o <= PLACES; o++) pl_desc_set(&c->out[o], PL_I64, c->out[0].ndim, c->out[0].shape);
  if (!pl_attr_i(c->attrs, k)) c->out[INDICES].dtype = PL_NDTYPE;
}
/* The caller's positions from the kernel's. */
static void offset_places(PlArray *indices, const PlArray *from, int64_t base) {
  for (int64_t i = 0; i < from->numel; i++) ((int64_t *)indices->data)[i] = ((const int64_t *)from->data)[i] + base;
}
/* The kernel's two outputs, then the caller's positions. */
static PlStatus run_max(const PlkCall *call, PlKernel kernel, int64_t base) {
  PlArray *indices = call->out[INDICES], *from = call->out[PLACES] ? call->out[PLACES] : indices;
  PlArray *out[2] = {call->out[VALUES], from};
  PlkCall k = *call;
  k.nout = 2;
  k.out = out;
  PL_TRY(kernel(&k));
  if (indices) offset_places(indices, from, base);
  return PL_OK;
}

static PlStatus max_infer(PlInfer *c, int nd) {
  PlGeometry v;
  int64_t y[5];
  if (c->in[0]->dtype == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "%s: not defined for bool", c->op->name);
  PL_TRY(check_rank(c, c->in[0], nd));
  PL_TRY(read_pool(c->op->name, c->attrs, nd, MAX_DILATION, &v));
  PL_TRY(pooled_sizes(c, &v, pl_attr_i(c->attrs, MAX_CEIL) != 0, y));
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, c->in[0]->ndim, y);
  may_follow(c, nd);
  index_outputs(c, MAX_RETURN);
  return PL_OK;
}

/* Integers go through f64, where every value up to 2^53 is exact; means are cut toward 0. */
static PlStatus through_f64(const PlkCall *call, PlKernel kernel) {
  const PlArray *x = call->in[0];
  PlArray *y = call->out[0];
  static const PlAttrs none;
  void *mx, *my = NULL;
  PL_TRY(plk_scratch((size_t)x->numel * sizeof(double), &mx));
  PlStatus s = plk_scratch((size_t)y->numel * sizeof(double), &my);
  PlArray fx = *x, fy = *y;
  fx.data = mx, fx.dtype = PL_F64, fy.data = my, fy.dtype = PL_F64;
  const PlArray *in[1] = {x}, *kin[1] = {&fx}, *back[1] = {&fy};
  PlArray *out[1] = {&fx}, *kout[2] = {&fy, call->nout > 1 ? call->out[1] : NULL}, *done[1] = {y};
  PlkCall cast = {.name = "cast", .code = PLK_EW_CAST, .nin = 1, .nout = 1, .in = in, .out = out, .attrs = &none};
  if (s == PL_OK) s = plk_cpu_elementwise(&cast);
  PlkCall k = *call;
  k.in = kin;
  k.out = kout;
  if (s == PL_OK) s = kernel(&k);
  cast.in = back;
  cast.out = done;
  if (s == PL_OK) s = plk_cpu_elementwise(&cast);
  plk_scratch_free(mx);
  plk_scratch_free(my);
  return s;
}

static PlStatus integer_max_pool(const PlkCall *call) { return through_f64(call, plk_cpu_max_pool); }
static PlStatus max_run(const PlkCall *call, int nd) {
  PlGeometry v;
  PlAttrs a;
  PL_TRY(read_pool(call->name, call->attrs, nd, MAX_DILATION, &v));
  max_attrs(&v, call->attrs, &a);
  PlkCall k = *call;
  k.attrs = &a;
  bool exact = pl_is_float((PlDtype)call->in[0]->dtype);
  return run_max(&k, exact ? plk_cpu_max_pool : integer_max_pool, pl_attr_i(call->attrs, MAX_BASE));
}

/* The same with the tangent, in output 3, of what is the last input. */
static PlStatus with_tangent(const PlkCall *call, int nd) {
  PlGeometry v;
  PlAttrs a;
  PL_TRY(read_pool(call->name, call->attrs, nd, MAX_DILATION, &v));
  max_attrs(&v, call->attrs, &a);
  PlArray *indices = call->out[INDICES], *from = call->out[PLACES] ? call->out[PLACES] : indices;
  PlArray *out[3] = {call->out[VALUES], from, call->out[3]};
  PlkCall k = *call;
  k.attrs = &a;
  k.out = out;
  k.nout = 3;
  PL_TRY(plk_cpu_max_pool_with_tangent(&k));
  if (indices) offset_places(indices, from, pl_attr_i(call->attrs, MAX_BASE));
  return PL_OK;
}

/* dx[indices] += dy, by the sizes of x. */
static PlStatus max_grad(PlMaker *g, int nd) {
  PlGeometry v;
  PlAttrs a;
  PL_TRY(read_pool(g->op->name, g->attrs, nd, MAX_DILATION, &v));
  if (g->dy[0] == PL_NONE) return g->status;
  max_attrs(&v, g->attrs, &a);
  a.nval = 6;
  pl_kernel_list(&a, MAX_SIZES, g->in[0]->ndim, g->in[0]->shape);
  const PlVal in[2] = {g->dy[0], g->y[PLACES]};
  g->dx[0] = pl_g_op(g, &pl_op_max_pool_bwd, 2, in, &a, NULL);
  return g->status;
}

static PlStatus sizes_infer(PlInfer *c, int k) {
  int n = pl_attr_n(c->attrs, k);
  const int64_t *sizes = pl_attr_list(c->attrs, k);
  const PlArray *dy = c->in[0];
  bool ok = n == dy->ndim && n <= 5 && pl_is_float((PlDtype)dy->dtype);
  for (int d = 0; ok && d < n; d++) ok = sizes[d] >= 0;
  if (ok && c->nin > 1)
    ok = c->in[1]->dtype == PL_I64 && c->in[1]->ndim == n && memcmp(c->in[1]->shape, dy->shape, (size_t)n * sizeof(int64_t)) == 0;
  if (!ok) PL_FAIL(PL_ERR_SHAPE, "%s: %s does not fit the other arguments", c->op->name, pl_desc_text(dy));
  pl_desc_set(&c->out[0], (PlDtype)dy->dtype, n, sizes);
  return PL_OK;
}
static PlStatus max_bwd_infer(PlInfer *c) {
  int nd = pl_attr_n(c->attrs, KERNEL), lead = c->in[0]->ndim - nd;
  PL_TRY(sizes_infer(c, MAX_SIZES));
  if (nd < 1 || nd > 3 || lead < 0 || memcmp(c->in[0]->shape, c->out[0].shape, (size_t)lead * sizeof(int64_t)) != 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s does not fit the sizes", c->op->name, pl_desc_text(c->in[0]));
  PlGeometry v;
  PL_TRY(read_pool(c->op->name, c->attrs, nd, MAX_DILATION, &v));
  const int pads = pl_attr_n(c->attrs, PADDING);
  if (pl_attr_n(c->attrs, STRIDE) != nd || (pads != nd && pads != 2 * nd) || pl_attr_n(c->attrs, MAX_DILATION) != nd)
    PL_FAIL(PL_ERR_ARG, "%s: stride, padding and dilation need an entry a spatial dim", c->op->name);
  may_follow(c, nd);
  return PL_OK;
}
/* d(dy) = ddx at the indices, plane by plane. */
static PlStatus gather_planes(PlMaker *g, int nd) {
  const PlDesc *x = &g->outd[0];
  const PlArray *y = g->in[0];
  int lead = y->ndim - nd;
  int64_t sx[PL_MAX_DIM], sy[PL_MAX_DIM], nx = 1, ny = 1;
  for (int d = 0; d < lead; d++) sx[d] = sy[d] = y->shape[d];
  for (int d = lead; d < y->ndim; d++) nx *= x->shape[d], ny *= y->shape[d];
  sx[lead] = nx;
  sy[lead] = ny;
  PlAttrs a;
  pl_attrs_init(&pl_op_reshape, &a);
  pl_g_fail(g, pl_attrs_list(&a, 0, lead + 1, sx));
  PlVal flat = pl_g_op(g, &pl_op_reshape, 1, &g->dy[0], &a, NULL);
  pl_attrs_init(&pl_op_reshape, &a);
  pl_g_fail(g, pl_attrs_list(&a, 0, lead + 1, sy));
  PlVal index = pl_g_op(g, &pl_op_reshape, 1, &g->x[1], &a, NULL);
  pl_attrs_init(&pl_op_gather, &a);
  pl_attrs_int(&a, 0, lead);
  pl_attrs_int(&a, 1, 0); /* index_base */
  const PlVal in[2] = {flat, index};
  PlVal v = pl_g_op(g, &pl_op_gather, 2, in, &a, NULL);
  if (g->want[0]) g->dx[0] = pl_g_reshape_like(g, v, 0);
  return g->status;
}
static PlStatus max_bwd_grad(PlMaker *g) { return gather_planes(g, pl_attr_n(g->attrs, KERNEL)); }

/* ---- average ------------------------------------------------------------------------------------------------ */

static void avg_attrs(const PlGeometry *v, const PlAttrs *user, PlAttrs *a) {
  *a = (PlAttrs){.nval = 7};
  pl_kernel_list(a, KERNEL, v->nd, v->kernel);
  pl_kernel_list(a, STRIDE, v->nd, v->stride);
  kernel_padding(a, v);
  pl_kernel_int(a, 3, pl_attr_i(user, AVG_INCLUDE));
  pl_kernel_int(a, 4, pl_attr_i(user, AVG_CEIL));
  if (pl_attr_has(user, AVG_DIVISOR)) pl_kernel_int(a, 5, pl_attr_i(user, AVG_DIVISOR));
  pl_kernel_list(a, AVG_DILATION, v->nd, v->dil);
}
static PlStatus check_divisor(const char *op, const PlAttrs *a) {
  if (pl_attr_has(a, AVG_DIVISOR) && pl_attr_i(a, AVG_DIVISOR) == 0) PL_FAIL(PL_ERR_ARG, "%s: divisor_override must not be 0", op);
  return PL_OK;
}
static PlStatus avg_infer(PlInfer *c, int nd) {
  PlGeometry v;
  int64_t y[5];
  if (c->in[0]->dtype == PL_BOOL) PL_FAIL(PL_ERR_DTYPE, "%s: not defined for bool", c->op->name);
  PL_TRY(check_rank(c, c->in[0], nd));
  PL_TRY(read_pool(c->op->name, c->attrs, nd, AVG_DILATION, &v));
  PL_TRY(check_divisor(c->op->name, c->attrs));
  PL_TRY(pooled_sizes(c, &v, pl_attr_i(c->attrs, AVG_CEIL) != 0, y));
  pl_desc_set(&c->out[0], (PlDtype)c->in[0]->dtype, c->in[0]->ndim, y);
  may_follow(c, nd);
  return PL_OK;
}
static PlStatus avg_call(const PlkCall *call, int nd, PlKernel kernel) {
  PlGeometry v;
  PlAttrs a;
  PL_TRY(read_pool(call->name, call->attrs, nd, AVG_DILATION, &v));
  avg_attrs(&v, call->attrs, &a);
  PlkCall k = *call;
  k.attrs = &a;
  return pl_is_float((PlDtype)call->in[0]->dtype) ? kernel(&k) : through_f64(&k, kernel);
}
/* The user's attributes with full lists, for the gradient ops. */
static void avg_again(const PlGeometry *v, const PlAttrs *user, PlAttrs *a) {
  avg_attrs(v, user, a);
  pl_kernel_int(a, AVG_CEIL, pl_attr_i(user, AVG_CEIL));
  pl_kernel_int(a, AVG_INCLUDE, pl_attr_i(user, AVG_INCLUDE));
}
static PlStatus avg_grad(PlMaker *g, int nd) {
  PlGeometry v;
  PlAttrs a;
  PL_TRY(read_pool(g->op->name, g->attrs, nd, AVG_DILATION, &v));
  avg_again(&v, g->attrs, &a);
  a.nval = 8;
  pl_kernel_list(&a, AVG_SIZES, g->in[0]->ndim, g->in[0]->shape);
  g->dx[0] = pl_g_op(g, &pl_op_avg_pool_bwd, 1, &g->dy[0], &a, NULL);
  return g->status;
}
static PlStatus avg_bwd_infer(PlInfer *c) {
  int nd = pl_attr_n(c->attrs, KERNEL), lead = c->in[0]->ndim - nd;
  PlGeometry v;
  PL_TRY(sizes_infer(c, AVG_SIZES));
  if (nd < 1 || nd > 3 || lead < 0) PL_FAIL(PL_ERR_SHAPE, "%s: kernel_size needs 1 to 3 entries", c->op->name);
  PL_TRY(read_pool(c->op->name, c->attrs, nd, AVG_DILATION, &v));
  PL_TRY(check_divisor(c->op->name, c->attrs));
  for (int d = 0; d < c->in[0]->ndim; d++) {
    int64_t n = c->out[0].shape[d], i = d - lead;
    if (i >= 0) n = pl_window_count(n, v.kernel[i], v.stride[i], v.pad[i], v.end[i], v.dil[i], pl_attr_i(c->attrs, AVG_CEIL) != 0);
    if (n != c->in[0]->shape[d]) PL_FAIL(PL_ERR_SHAPE, "%s: %s does not fit the sizes", c->op->name, pl_desc_text(c->in[0]));
  }
  may_follow(c, nd);
  return PL_OK;
}
static PlStatus avg_bwd_cpu(const PlkCall *call) { return avg_call(call, pl_attr_n(call->attrs, KERNEL), plk_cpu_avg_pool_bwd); }
static PlStatus avg_bwd_grad(PlMaker *g) {
  static const PlOp *const op[3] = {&pl_op_avg_pool1d, &pl_op_avg_pool2d, &pl_op_avg_pool3d};
  PlGeometry v;
  PlAttrs a;
  int nd = pl_attr_n(g->attrs, KERNEL);
  PL_TRY(read_pool(g->op->name, g->attrs, nd, AVG_DILATION, &v));
  avg_again(&v, g->attrs, &a);
  g->dx[0] = pl_g_op(g, op[nd - 1], 1, &g->dy[0], &a, NULL);
  return g->status;
}

/* ---- adaptive: the output's size is given ----------------------------------------------------------------------- */

static PlStatus adaptive_infer(PlInfer *c, int nd) {
  const PlArray *x = c->in[0];
  int64_t size[3];
  PL_TRY(pl_check_float(c, 0));
  PL_TRY(check_rank(c, x, nd));
  PL_TRY(pl_spatial_list(c->op->name, "output_size", c->attrs, 0, nd, 0, size));
  pl_desc_set(&c->out[0], (PlDtype)x->dtype, x->ndim, x->shape);
  for (int d = 0; d < nd; d++) c->out[0].shape[x->ndim - nd + d] = size[d];
  may_follow(c, nd);
  if (c->op->nout > 1) index_outputs(c, 1);
  return PL_OK;
}

/* Kernels find the spatial dims behind two others: an unbatched array gets a batch of one. */
static PlStatus planes(const PlkCall *call, int nd, PlKernel kernel) {
  PlWindow win[2], wout[2];
  const PlArray *in[2] = {NULL, NULL};
  PlArray *out[2] = {NULL, NULL};
  for (int i = 0; i < call->nin; i++) {
    pl_window_of(&win[i], call->in[i]);
    if (win[i].a.ndim == nd + 1) pl_window_insert(&win[i], 0);
    in[i] = &win[i].a;
  }
  for (int o = 0; o < call->nout; o++) {
    if (!call->out[o]) continue;
    pl_window_of(&wout[o], call->out[o]);
    if (wout[o].a.ndim == nd + 1) pl_window_insert(&wout[o], 0);
    out[o] = &wout[o].a;
  }
  PlkCall k = *call;
  k.in = in;
  k.out = out;
  k.attrs = NULL;
  return kernel(&k);
}

/* The gradient ops carry x's sizes and, as attribute 1, the number of spatial dims. */
static PlVal adaptive_emit(PlMaker *g, const PlOp *op, int nin, const PlVal *in, int nd) {
  PlAttrs a;
  pl_attrs_init(op, &a);
  pl_kernel_list(&a, 0, g->in[0]->ndim, g->in[0]->shape);
  pl_attrs_int(&a, 1, nd);
  return pl_g_op(g, op, nin, in, &a, NULL);
}
static PlStatus adaptive_bwd_infer(PlInfer *c) {
  int64_t nd = pl_attr_i(c->attrs, 1);
  PL_TRY(sizes_infer(c, 0));
  const PlArray *dy = c->in[0];
  if (nd < 1 || nd > 3 || (dy->ndim != nd + 1 && dy->ndim != nd + 2) ||
      memcmp(dy->shape, c->out[0].shape, (size_t)(dy->ndim - nd) * sizeof(int64_t)) != 0)
    PL_FAIL(PL_ERR_SHAPE, "%s: %s does not fit the sizes", c->op->name, pl_desc_text(dy));
  may_follow(c, (int)nd);
  return PL_OK;
}
static PlStatus adaptive_max_bwd_cpu(const PlkCall *call) { return planes(call, (int)pl_attr_i(call->attrs, 1), plk_cpu_max_pool_bwd); }
static PlStatus adaptive_avg_bwd_cpu(const PlkCall *call) {
  return planes(call, (int)pl_attr_i(call->attrs, 1), plk_cpu_adaptive_avg_pool_bwd);
}
static PlStatus adaptive_max_bwd_grad(PlMaker *g) { return gather_planes(g, (int)pl_attr_i(g->attrs, 1)); }
static PlStatus adaptive_avg_bwd_grad(PlMaker *g) {
  static const PlOp *const op[3] = {&pl_op_adaptive_avg_pool1d, &pl_op_adaptive_avg_pool2d, &pl_op_adaptive_avg_pool3d};
  int nd = (int)pl_attr_i(g->attrs, 1);
  PlAttrs a;
  pl_attrs_init(op[nd - 1], &a);
  pl_kernel_list(&a, 0, nd, g->in[0]->shape + (g->in[0]->ndim - nd));
  g->dx[0] = pl_g_op(g, op[nd - 1], 1, &g->dy[0], &a, NULL);
  return g->status;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

#define WINDOW    A_INTS_REQ("kernel_size"), A_INTS_OPT("stride"), A_INTS("padding", 0)
#define MAX_ATTRS WINDOW, A_INTS("dilation", 1), A_BOOL("ceil_mode", 0)
#define AVG_ATTRS WINDOW, A_BOOL("ceil_mode", 0), A_BOOL("count_include_pad", 1), A_INT_OPT("divisor_override"), A_INTS("dilation", 1)
#define BWD(NAME, NIN, NATTR, INFER, GRAD, CPU, ...)                                                                                   \
  PL_OP(NAME, .doc = "The gradient of pooling.", .nin = NIN, .nout = 1, .nattr = NATTR, .args = {"dy", NIN > 1 ? "indices" : NULL},    \
        .attrs = {__VA_ARGS__}, .cls = PL_OPAQUE, .flags = PL_F_INTERNAL | PL_F_CONTIGUOUS, .infer = INFER, .batch = pl_batch_samples, \
        .grad = GRAD, .kernel = {[PL_CPU] = CPU});
BWD(max_pool_bwd, 2, 6, max_bwd_infer, max_bwd_grad, plk_cpu_max_pool_bwd, MAX_ATTRS, A_SHAPE_REQ("sizes"))
BWD(avg_pool_bwd, 1, 8, avg_bwd_infer, avg_bwd_grad, avg_bwd_cpu, AVG_ATTRS, A_SHAPE_REQ("sizes"))
BWD(adaptive_max_pool_bwd, 2, 2, adaptive_bwd_infer, adaptive_max_bwd_grad, adaptive_max_bwd_cpu, A_SHAPE_REQ("sizes"),
    A_INT_REQ("spatial"))
BWD(adaptive_avg_pool_bwd, 1, 2, adaptive_bwd_infer, adaptive_avg_bwd_grad, adaptive_avg_bwd_cpu, A_SHAPE_REQ("sizes"),
    A_INT_REQ("spatial"))

#define ASKED A_BOOL("return_indices", 0), A_BASE
#define POOLS(ND, IN, OUT, MAX, AVG, ADAPTIVE_MAX, ADAPTIVE_AVG)                                                                           \
  static PlStatus max##ND##_infer(PlInfer *c) { return max_infer(c, ND); }                                                                 \
  PL_HOST_KERNEL(pl_host_max_pool##ND##d) { return max_run(call, ND); }                                                                    \
  static PlStatus max##ND##_with_tangent(const PlkCall *call) { return with_tangent(call, ND); }                                           \
  static PlStatus max##ND##_grad(PlMaker *g) { return max_grad(g, ND); }                                                                   \
  PL_OP(max_pool##ND##d, .autocast = ND == 3 ? PL_CAST_F32 : PL_CAST_NONE,                                                                 \
        .doc = "Largest values of windows over x[N,C," IN "] (or without N); with return_indices also their places "                       \
               "in the planes of x. stride is kernel_size unless given; padding has one number, one a dim, or all before and then "        \
               "all behind: {top, left, bottom, right}.",                                                                                  \
        .example = MAX, .nin = 1, .nout = 3, .nvisible = 2, .spare = 1 << PLACES, .nattr = 7, .args = {"x"}, .attrs = {MAX_ATTRS, ASKED},  \
        .batch = pl_batch_samples, .cls = PL_OPAQUE, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD, .infer = max##ND##_infer,                   \
        .grad = max##ND##_grad, .with_tangent = max##ND##_with_tangent, .flops = pool_flops, PL_KERNEL_OWN(pl_host_max_pool##ND##d));      \
  static PlStatus avg##ND##_infer(PlInfer *c) { return avg_infer(c, ND); }                                                                 \
  PL_HOST_KERNEL(pl_host_avg_pool##ND##d) { return avg_call(call, ND, plk_cpu_avg_pool); }                                                 \
  static PlStatus avg##ND##_grad(PlMaker *g) { return avg_grad(g, ND); }                                                                   \
  PL_OP(avg_pool##ND##d, .autocast = ND == 3 ? PL_CAST_F32 : PL_CAST_NONE,                                                                 \
        .doc = "Means of windows over x[N,C," IN "] (or without N). stride is kernel_size unless given; padding "                          \
               "counts as zeros if count_include_pad; it has one number, one a dim, or all before and then all behind: "                   \
               "{top, left, bottom, right}.",                                                                                              \
        .example = AVG, .nin = 1, .nout = 1, .nattr = 7, .args = {"x"}, .attrs = {AVG_ATTRS}, .cls = PL_OPAQUE, .batch = pl_batch_samples, \
        .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD, .infer = avg##ND##_infer, .grad = avg##ND##_grad, .flops = pool_flops,                   \
        PL_KERNEL_OWN(pl_host_avg_pool##ND##d));                                                                                           \
  static PlStatus adaptive##ND##_infer(PlInfer *c) { return adaptive_infer(c, ND); }                                                       \
  static PlStatus adaptive_planes##ND(const PlkCall *call) { return planes(call, ND, plk_cpu_adaptive_max_pool); }                         \
  PL_HOST_KERNEL(pl_host_adaptive_max_pool##ND##d) { return run_max(call, adaptive_planes##ND, pl_attr_i(call->attrs, 2)); }               \
  static PlStatus adaptive_max##ND##_grad(PlMaker *g) {                                                                                    \
    const PlVal in[2] = {g->dy[0], g->y[PLACES]};                                                                                          \
    if (g->dy[0] != PL_NONE) g->dx[0] = adaptive_emit(g, &pl_op_adaptive_max_pool_bwd, 2, in, ND);                                         \
    return g->status;                                                                                                                      \
  }                                                                                                                                        \
  PL_OP(adaptive_max_pool##ND##d, .autocast = ND == 3 ? PL_CAST_F32 : PL_CAST_NONE,                                                        \
        .doc = "x[N,C," IN "] (or without N) cut into output_size windows of nearly equal size: their largest "                            \
               "values; with return_indices also their places in the planes of x.",                                                        \
        .example = ADAPTIVE_MAX, .nin = 1, .nout = 3, .nvisible = 2, .spare = 1 << PLACES, .nattr = 3, .args = {"x"},                      \
        .attrs = {A_INTS_REQ("output_size"), ASKED}, .batch = pl_batch_samples, .cls = PL_OPAQUE,                                          \
        .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD, .infer = adaptive##ND##_infer, .grad = adaptive_max##ND##_grad,                          \
        PL_KERNEL_OWN(pl_host_adaptive_max_pool##ND##d));                                                                                  \
  PL_HOST_KERNEL(pl_host_adaptive_avg_pool##ND##d) { return planes(call, ND, plk_cpu_adaptive_avg_pool); }                                 \
  static PlStatus adaptive_avg##ND##_grad(PlMaker *g) {                                                                                    \
    g->dx[0] = adaptive_emit(g, &pl_op_adaptive_avg_pool_bwd, 1, &g->dy[0], ND);                                                           \
    return g->status;                                                                                                                      \
  }                                                                                                                                        \
  PL_OP(adaptive_avg_pool##ND##d, .autocast = ND == 3 ? PL_CAST_F32 : PL_CAST_NONE,                                                        \
        .doc = "x[N,C," IN "] (or without N) cut into output_size windows of nearly equal size: their means.", .example = ADAPTIVE_AVG,    \
        .formula = "the mean of x[floor(t in / out) ... ceil((t + 1) in / out) - 1]", .nin = 1, .nout = 1, .nattr = 1, .args = {"x"},      \
        .attrs = {A_INTS_REQ("output_size")}, .cls = PL_OPAQUE, .batch = pl_batch_samples, .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD,       \
        .infer = adaptive##ND##_infer, .grad = adaptive_avg##ND##_grad, PL_KERNEL_OWN(pl_host_adaptive_avg_pool##ND##d));
POOLS(1, "L", "L'", "print((T.max_pool1d(T.tensor { { 1, 3, 2, 4 } }, 2)))  --> {{3., 4.}}  -- f32[1,2] cpu",
      "print(T.avg_pool1d(T.tensor { { 1, 3, 2, 4 } }, 2))  --> {{2., 3.}}  -- f32[1,2] cpu",
      "print((T.adaptive_max_pool1d(T.tensor { { 1, 3, 2, 4, 0 } }, 2)))  --> {{3., 4.}}  -- f32[1,2] cpu",
      "print(T.adaptive_avg_pool1d(T.tensor { { 1, 3, 2, 4 } }, 2))  --> {{2., 3.}}  -- f32[1,2] cpu")
POOLS(2, "H,W", "H',W'",
      "local x = T.arange(16):float():view(1, 1, 4, 4)\n"
      "print((T.max_pool2d(x, 2)))\n"
      "--> {{{{ 6.,  8.},\n"
      "-->    {14., 16.}}}}  -- f32[1,1,2,2] cpu",
      "local x = T.arange(16):float():view(1, 1, 4, 4)\n"
      "print(T.avg_pool2d(x, 2))\n"
      "--> {{{{ 3.5000,  5.5000},\n"
      "-->    {11.5000, 13.5000}}}}  -- f32[1,1,2,2] cpu",
      "print((T.adaptive_max_pool2d(T.arange(9):float():view(1, 3, 3), 1)))  --> {{{9.}}}  -- f32[1,1,1] cpu",
      "print(T.adaptive_avg_pool2d(T.arange(9):float():view(1, 3, 3), 1))  --> {{{5.}}}  -- f32[1,1,1] cpu")
POOLS(3, "D,H,W", "D',H',W'", "print((T.max_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), 2)))  --> {{{{{8.}}}}}  -- f32[1,1,1,1,1] cpu",
      "print(T.avg_pool3d(T.arange(8):float():view(1, 1, 2, 2, 2), 2))  --> {{{{{4.5000}}}}}  -- f32[1,1,1,1,1] cpu",
      "print((T.adaptive_max_pool3d(T.arange(8):float():view(1, 2, 2, 2), 1)))  --> {{{{8.}}}}  -- f32[1,1,1,1] cpu",
      "print(T.adaptive_avg_pool3d(T.arange(8):float():view(1, 2, 2, 2), 1))  --> {{{{4.5000}}}}  -- f32[1,1,1,1] cpu")
