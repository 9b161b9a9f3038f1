/* SPDX-License-Identifier: MIT
 * Cross entropy of a linear layer's outputs, x wᵀ + b, which never stand whole: `chunk` rows of them are made at a time, and their gradient
 * over them, from which what reaches x, w and b is taken at once. Gradients of w and b are added up over the chunks, in f32 where
 * x is narrower, and rounded once. What rows a chunk has depends on shapes alone, so do the bits. */
#include "engine/device/dispatch.h"
#include "engine/ops/linalg/matmul_operands.h"
#include "engine/ops/make.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
#include "kernels/gemm.h"
#include "kernels/loss.h"
#include "kernels/reduce.h"

PL_EITHER(linear)
PL_EITHER(matmul)
PL_EITHER(addmm)
PL_EITHER(cross_entropy)
PL_EITHER(cross_entropy_bwd)
PL_EITHER(elementwise)
PL_EITHER(sum_to)

enum { REDUCTION, IGNORE, BASE, SMOOTHING, CHUNK, WANTED }; /* attributes; WANTED of gradients: 1 dx, 2 dw, 4 db */

#define ATTRS A_ENUM("reduction", "none|sum", 1), A_INT("ignore_index", -100), A_BASE, A_FLOAT("label_smoothing", 0), A_INT("chunk", 512)

static PlDtype wide(PlDtype d) { return d == PL_F64 ? PL_F64 : PL_F32; }

/* ---- shapes ----------------------------------------------------------------------------------------------------------- */

/* x is input `at`; behind it linear_weight, target, and from `rest` on linear_bias and weight. */
static PlStatus check(const PlInfer *c, int at, int rest) {
  const PlArray *x = c->in[at], *w = c->in[at + 1], *t = c->in[at + 2], *b = c->in[rest];
  PL_TRY(pl_check_float(c, at));
  PL_TRY(pl_check_ndim(c, at, 2, 2));
  PL_TRY(pl_check_ndim(c, at + 1, 2, 2));
  if (x->shape[1] != w->shape[1])
    PL_FAIL(PL_ERR_SHAPE, "%s: x [N, K] with linear_weight [C, K] are wanted, got %s, %s", c->op->name, pl_desc_text(x), pl_desc_text(w));
  for (int i = 0; i < 2; i++) {
    const PlArray *a = i ? b : w;
    if (a && a->dtype != x->dtype && !(a->dtype == PL_F32 && pl_is_half((PlDtype)x->dtype)))
      PL_FAIL(PL_ERR_DTYPE, "%s: %s is %s, but x %s; it is of x's dtype, or f32 beside a half", c->op->name,
              i ? "linear_bias" : "linear_weight", pl_desc_text(a), pl_desc_text(x));
  }
  if (!pl_is_int((PlDtype)t->dtype) || t->ndim != 1 || t->shape[0] != x->shape[0])
    PL_FAIL(PL_ERR_SHAPE, "%s: target must be class numbers [%lld], one for each row of x, got %s", c->op->name, (long long)x->shape[0],
            pl_desc_text(t));
  PL_TRY(pl_check_shape(c, rest, 1, w->shape));
  if (c->in[rest + 1]) PL_TRY(pl_check_float(c, rest + 1));
  PL_TRY(pl_check_shape(c, rest + 1, 1, w->shape));
  const double e = pl_attr_f(c->attrs, SMOOTHING);
  if (!(e >= 0 && e <= 1)) PL_FAIL(PL_ERR_ARG, "%s: label_smoothing must be between 0 and 1, got %g", c->op->name, e);
  if (pl_attr_i(c->attrs, CHUNK) < 1)
    PL_FAIL(PL_ERR_ARG, "%s: chunk is a number of rows, at least 1, got %lld", c->op->name, (long long)pl_attr_i(c->attrs, CHUNK));
  return PL_OK;
}
static void loss_desc(const PlInfer *c, const PlArray *x, PlDesc *d) {
  pl_desc_set(d, wide((PlDtype)x->dtype), pl_attr_i(c->attrs, REDUCTION) ? 0 : 1, x->shape);
}
/* dx, dw, db from output o on. */
static void gradient_descs(const PlInfer *c, int at, int rest, int o) {
  const int64_t wanted = pl_attr_i(c->attrs, WANTED);
  for (int i = 0; i < 3; i++) {
    const PlArray *a = c->in[i < 2 ? at + i : rest];
    if (a && wanted >> i & 1) pl_desc_set(&c->out[o + i], (PlDtype)a->dtype, a->ndim, a->shape);
    else c->out[o + i].dtype = PL_NDTYPE;
  }
}
static PlStatus check_dy(const PlInfer *c) {
  PL_TRY(pl_check_float(c, 0));
  if (!pl_attr_i(c->attrs, REDUCTION)) return pl_check_shape(c, 0, 1, c->in[1]->shape);
  if (c->in[0]->numel != 1) PL_FAIL(PL_ERR_SHAPE, "%s: dy is %s, but the loss is one number", c->op->name, pl_desc_text(c->in[0]));
  return PL_OK;
}

static PlStatus loss_infer(PlInfer *c) {
  PL_TRY(check(c, 0, 3));
  loss_desc(c, c->in[0], &c->out[0]);
  pl_desc_set(&c->out[1], wide((PlDtype)c->in[0]->dtype), 1, c->in[0]->shape);
  return PL_OK;
}
static PlStatus bwd_infer(PlInfer *c) {
  PL_TRY(check(c, 1, 5));
  PL_TRY(check_dy(c));
  PL_TRY(pl_check_float(c, 4));
  PL_TRY(pl_check_shape(c, 4, 1, c->in[1]->shape));
  gradient_descs(c, 1, 5, 0);
  return PL_OK;
}
static PlStatus both_infer(PlInfer *c) {
  PL_TRY(check(c, 1, 4));
  PL_TRY(check_dy(c));
  loss_desc(c, c->in[1], &c->out[0]);
  gradient_descs(c, 1, 4, 1);
  return PL_OK;
}
/* A product of x and w: forward one, backward one for the outputs and one for each gradient. */
static double product_flops(const PlInfer *c, int at) { return 2 * (double)c->in[at]->numel * (double)c->in[at + 1]->shape[0]; }
static double loss_flops(const PlInfer *c) { return product_flops(c, 0); }
static double both_flops(const PlInfer *c) {
  const int64_t wanted = pl_attr_i(c->attrs, WANTED);
  return (double)(1 + (wanted & 1) + (wanted >> 1 & 1)) * product_flops(c, 1);
}

/* ---- the kernel --------------------------------------------------------------------------------------------------------- */

/* NULL: not given, or not wanted. */
typedef struct Head {
  const PlkCall *call;
  int device;
  PlDtype dtype, sum; /* of x and the outputs; of what is added up */
  const PlArray *dy, *x, *target, *weight;
  PlWindow w, b;            /* in x's dtype */
  const PlArray *bias;      /* &b.a */
  PlArray *loss, *lse, *dx; /* as they are returned */
  const PlArray *kept;      /* lse, of forward */
  PlWindow dw, db, parts;   /* what is added up: dw, rows of db by chunk, and losses by chunk, in f64 */
  bool want_dw, want_db;
  int64_t rows, classes, chunk, chunks;
  void *y, *row, *scratch[8];
  int n;
} Head;

static const PlAttrs none;

static void call_of(PlkCall *k, const char *name, int nin, const PlArray *const *in, int nout, PlArray *const *out, const PlAttrs *attrs) {
  *k = (PlkCall){.name = name, .nin = nin, .nout = nout, .in = in, .out = out, .attrs = attrs};
}
static PlStatus room(Head *h, int64_t elements, PlDtype d, void **out) {
  PL_TRY(pl_scratch_at(h->device, (size_t)(elements > 0 ? elements : 1) * pl_dtype_size(d), out));
  h->scratch[h->n++] = *out;
  return PL_OK;
}
/* A dense array of up to two dims over that memory. */
static void dense(const Head *h, PlWindow *w, PlDtype d, int ndim, int64_t rows, int64_t cols, void *data) {
  w->a = (PlArray){.data = data, .dtype = (uint8_t)d, .ndim = (uint8_t)ndim, .device = (uint8_t)h->device};
  w->shape[0] = rows, w->shape[1] = cols, w->strides[0] = ndim > 1 ? cols : 1, w->strides[1] = 1;
  pl_window_done(w);
}
/* n rows of a from row `at` on. */
static const PlArray *rows_of(PlWindow *w, const PlArray *a, int64_t at, int64_t n) {
  if (!a) return NULL;
  pl_window_of(w, a);
  w->shape[0] = n;
  w->a.data = (char *)a->data + at * w->strides[0] * (int64_t)pl_dtype_size((PlDtype)a->dtype);
  pl_window_done(w);
  return &w->a;
}
static PlStatus cast(const PlArray *from, PlArray *to) {
  PlkCall k;
  call_of(&k, "cast", 1, &from, 1, &to, &none);
  k.code = from->dtype == to->dtype ? PLK_EW_COPY : PLK_EW_CAST;
  return either_elementwise(&k);
}
static PlStatus sum(const PlArray *from, PlArray *to) {
  PlkCall k;
  call_of(&k, "sum_to", 1, &from, 1, &to, &none);
  return either_sum_to(&k);
}
/* a in x's dtype. */
static PlStatus narrowed(Head *h, const PlArray *a, PlWindow *w) {
  void *data;
  pl_window_of(w, a);
  if ((PlDtype)a->dtype == h->dtype) return PL_OK;
  PL_TRY(room(h, a->numel, h->dtype, &data));
  dense(h, w, h->dtype, a->ndim, a->shape[0], a->ndim > 1 ? a->shape[1] : 1, data);
  return cast(a, &w->a);
}

/* Before anything is written, and with the position in the whole. A GPU looks in its kernels. */
static PlStatus targets_fit(const Head *h) {
  const int64_t ignore = pl_attr_i(h->call->attrs, IGNORE), base = pl_attr_i(h->call->attrs, BASE);
  for (int64_t i = 0; h->device == PL_CPU && i < h->rows; i++) {
    const void *p = h->target->data;
    int64_t v;
    switch ((PlDtype)h->target->dtype) {
    case PL_I8: v = ((const int8_t *)p)[i]; break;
    case PL_U8: v = ((const uint8_t *)p)[i]; break;
    case PL_I16: v = ((const int16_t *)p)[i]; break;
    case PL_I32: v = ((const int32_t *)p)[i]; break;
    default: v = ((const int64_t *)p)[i];
    }
    if (v != ignore && (v < base || (uint64_t)v - (uint64_t)base >= (uint64_t)h->classes))
      PL_FAIL(PL_ERR_INDEX, "%s: target %lld at position %lld is not in %lld … %lld (the %lld rows of linear_weight)%s", h->call->name,
              (long long)v, (long long)(i + base), (long long)base, (long long)(base + h->classes - 1), (long long)h->classes,
              v == 0 && base == 1 ? "; classes count from 1, or pass index_base=0" : "");
  }
  return PL_OK;
}

static PlStatus start(Head *h) {
  void *data;
  h->device = h->x->device, h->dtype = (PlDtype)h->x->dtype, h->sum = wide(h->dtype);
  h->rows = h->x->shape[0], h->classes = h->w.a.shape[0];
  h->chunk = pl_attr_i(h->call->attrs, CHUNK);
  h->chunk = h->chunk < h->rows ? h->chunk : h->rows > 0 ? h->rows : 1;
  h->chunks = h->rows > 0 ? (h->rows + h->chunk - 1) / h->chunk : 1;
  PL_TRY(targets_fit(h));
  const PlWindow w = h->w, b = h->b;
  PL_TRY(narrowed(h, &w.a, &h->w));
  if (h->bias) PL_TRY(narrowed(h, &b.a, &h->b));
  PL_TRY(room(h, h->chunk * h->classes, h->dtype, &h->y));
  if (!h->kept && !h->lse) PL_TRY(room(h, h->chunk, h->sum, &h->row));
  if (h->loss && h->loss->ndim == 0) {
    PL_TRY(room(h, h->chunks, PL_F64, &data));
    dense(h, &h->parts, PL_F64, 1, h->chunks, 1, data);
  }
  if (h->want_db) {
    PL_TRY(room(h, h->chunks * h->classes, h->sum, &data));
    dense(h, &h->db, h->sum, 2, h->chunks, h->classes, data);
  }
  return PL_OK;
}

/* The losses of chunk i, rows at … at + n - 1, whose outputs are y. */
static PlStatus losses(Head *h, int64_t i, int64_t at, int64_t n, const PlArray *y, PlAttrs *attrs, PlArray *lse) {
  PlWindow t, l;
  const bool one = h->loss->ndim == 0;
  PlArray part = {.device = (uint8_t)h->device, .dtype = PL_F64, .numel = 1, .contiguous = 1};
  int64_t shape[1] = {1};
  part.shape = part.strides = shape;
  part.data = one ? (double *)h->parts.a.data + i : NULL;
  rows_of(&t, h->target, at, n);
  if (!one) rows_of(&l, h->loss, at, n);
  const PlArray *in[3] = {y, &t.a, h->weight};
  PlArray *out[2] = {one ? &part : &l.a, lse};
  PlkCall k;
  call_of(&k, h->call->name, 3, in, 2, out, attrs);
  return either_cross_entropy(&k);
}

/* y, which become their gradients, give their part of dx, dw and db. */
static PlStatus gradients(Head *h, int64_t i, int64_t at, int64_t n, PlArray *y, PlAttrs *attrs, const PlArray *lse) {
  PlWindow t, dy, x, dx, turned, db;
  PlkCall k;
  rows_of(&x, h->x, at, n);
  rows_of(&t, h->target, at, n);
  const PlArray *of[5] = {h->dy->ndim ? rows_of(&dy, h->dy, at, n) : h->dy, y, &t.a, lse, h->weight};
  if (pl_attr_i(attrs, 0) != 0) of[0] = h->dy;
  call_of(&k, h->call->name, 5, of, 1, &y, attrs);
  PL_TRY(either_cross_entropy_bwd(&k));
  if (h->dx) {
    const PlArray *in[2] = {y, &h->w.a};
    PlArray *out = (PlArray *)(uintptr_t)rows_of(&dx, h->dx, at, n);
    call_of(&k, "matmul", 2, in, 1, &out, &none);
    PL_TRY(either_matmul(&k));
  }
  if (h->want_dw) {
    PlAttrs by;
    pl_attrs_init(&pl_op_addmm, &by);
    pl_attrs_float(&by, 0, i > 0);
    pl_attrs_float(&by, 1, 1);
    pl_window_of(&turned, y);
    turned.shape[0] = y->shape[1], turned.shape[1] = y->shape[0];
    turned.strides[0] = y->strides[1], turned.strides[1] = y->strides[0];
    pl_window_done(&turned);
    PlArray *dw = &h->dw.a;
    const PlArray *in[3] = {dw, &turned.a, &x.a};
    call_of(&k, "addmm", 3, in, 1, &dw, &by);
    PL_TRY(either_addmm(&k));
  }
  if (!h->want_db) return PL_OK;
  rows_of(&db, &h->db.a, i, 1);
  return sum(y, &db.a);
}

static PlStatus chunk(Head *h, int64_t i) {
  const int64_t at = i * h->chunk, n = h->rows - at < h->chunk ? h->rows - at : h->chunk;
  PlWindow x, y, lse;
  PlAttrs attrs;
  PlkCall k;
  pl_attrs_init(&pl_op_cross_entropy, &attrs);
  pl_attrs_int(&attrs, 0, pl_attr_i(h->call->attrs, REDUCTION) ? 2 : 0);
  pl_attrs_int(&attrs, 1, pl_attr_i(h->call->attrs, IGNORE));
  pl_attrs_int(&attrs, 2, pl_attr_i(h->call->attrs, BASE));
  pl_attrs_float(&attrs, 3, pl_attr_f(h->call->attrs, SMOOTHING));
  dense(h, &y, h->dtype, 2, n, h->classes, h->y);
  const PlArray *in[3] = {rows_of(&x, h->x, at, n), &h->w.a, h->bias};
  PlArray *out = &y.a;
  call_of(&k, "linear", h->bias ? 3 : 2, in, 1, &out, &none);
  PL_TRY(either_linear(&k));
  if (h->kept) rows_of(&lse, h->kept, at, n);
  else if (h->lse) rows_of(&lse, h->lse, at, n);
  else dense(h, &lse, h->sum, 1, n, 1, h->row);
  if (h->loss) PL_TRY(losses(h, i, at, n, &y.a, &attrs, &lse.a));
  return h->dy ? gradients(h, i, at, n, &y.a, &attrs, &lse.a) : PL_OK;
}

/* dw and db: where they are added up, and what becomes of that. */
static PlStatus run(Head *h, PlArray *dw, PlArray *db) {
  h->want_dw = dw != NULL, h->want_db = db != NULL;
  void *data;
  PlStatus s = start(h);
  if (s == PL_OK && dw && (PlDtype)dw->dtype != h->sum) {
    s = room(h, dw->numel, h->sum, &data);
    if (s == PL_OK) dense(h, &h->dw, h->sum, 2, dw->shape[0], dw->shape[1], data);
  } else if (s == PL_OK && dw) {
    pl_window_of(&h->dw, dw);
  }
  for (int64_t i = 0; i < h->chunks && s == PL_OK; i++) s = chunk(h, i);
  if (s == PL_OK && dw && (PlDtype)dw->dtype != h->sum) s = cast(&h->dw.a, dw);
  if (s == PL_OK && db) {
    PlWindow all;
    dense(h, &all, h->sum, 1, h->classes, 1, NULL);
    if ((PlDtype)db->dtype == h->sum) all.a.data = db->data;
    else s = room(h, h->classes, h->sum, &all.a.data);
    if (s == PL_OK) s = sum(&h->db.a, &all.a);
    if (s == PL_OK && all.a.data != db->data) s = cast(&all.a, db);
  }
  if (s == PL_OK && h->loss && h->loss->ndim == 0) {
    PlWindow all;
    dense(h, &all, PL_F64, 0, 1, 1, NULL);
    s = room(h, 1, PL_F64, &all.a.data);
    if (s == PL_OK) s = sum(&h->parts.a, &all.a);
    if (s == PL_OK) s = cast(&all.a, h->loss);
  }
  while (h->n > 0) pl_scratch_free_at(h->device, h->scratch[--h->n]);
  return s;
}

static const PlArray *input(const PlkCall *call, int i) { return i < call->nin ? call->in[i] : NULL; }

static void head_of(Head *h, const PlkCall *call, int at, int rest) {
  *h = (Head){.call = call, .x = call->in[at], .target = call->in[at + 2], .weight = input(call, rest + 1)};
  pl_window_of(&h->w, call->in[at + 1]);
  if (!input(call, rest)) return;
  pl_window_of(&h->b, call->in[rest]);
  h->bias = &h->b.a;
}

PL_HOST_KERNEL(pl_host_cross_entropy_linear) {
  Head h;
  head_of(&h, call, 0, 3);
  h.loss = call->out[0], h.lse = call->out[1];
  return run(&h, NULL, NULL);
}
PL_HOST_KERNEL(pl_host_cross_entropy_linear_bwd) {
  Head h;
  head_of(&h, call, 1, 5);
  h.dy = call->in[0], h.kept = call->in[4], h.dx = call->out[0];
  return run(&h, call->out[1], call->out[2]);
}
PL_HOST_KERNEL(pl_host_cross_entropy_linear_both) {
  Head h;
  head_of(&h, call, 1, 4);
  h.dy = call->in[0], h.loss = call->out[0], h.dx = call->out[1];
  return run(&h, call->out[2], call->out[3]);
}

/* ---- gradients --------------------------------------------------------------------------------------------------------- */

static PlStatus loss_grad(PlMaker *g) {
  const PlVal in[7] = {g->dy[0], g->x[0], g->x[1], g->x[2], g->y[1], g->nin > 3 ? g->x[3] : PL_NONE, g->nin > 4 ? g->x[4] : PL_NONE};
  const int to[3] = {0, 1, 3};
  PlVal out[3] = {PL_NONE, PL_NONE, PL_NONE};
  PlAttrs a;
  int64_t wanted = 0;
  for (int i = 0; i < 3; i++)
    if (to[i] < g->nin && g->in[to[i]] && g->want[to[i]]) wanted |= 1 << i;
  if (!wanted) return g->status;
  pl_attrs_init(&pl_op_cross_entropy_linear_bwd, &a);
  for (int k = 0; k <= CHUNK; k++)
    if (k == SMOOTHING) pl_attrs_float(&a, k, pl_attr_f(g->attrs, k));
    else pl_attrs_int(&a, k, pl_attr_i(g->attrs, k));
  pl_attrs_int(&a, WANTED, wanted);
  pl_g_op(g, &pl_op_cross_entropy_linear_bwd, 7, in, &a, out);
  for (int i = 0; i < 3; i++)
    if (wanted >> i & 1) g->dx[to[i]] = out[i];
  return g->status;
}

static PlVal plus(PlMaker *g, PlVal a, PlVal b) { return a == PL_NONE ? b : b == PL_NONE ? a : g_add(g, a, b); }
static PlVal narrow(PlMaker *g, int i, PlVal v) {
  const PlDtype d = (PlDtype)g->in[1]->dtype;
  return v == PL_NONE || (PlDtype)g->in[i]->dtype == d ? v : pl_g_cast(g, v, d);
}
static PlVal rows_summed(PlMaker *g, PlVal v) {
  const int64_t dims[1] = {0};
  PlAttrs a;
  pl_attrs_init(&pl_op_sum, &a);
  pl_g_fail(g, pl_attrs_list(&a, 0, 1, dims));
  return pl_g_op(g, &pl_op_sum, 1, &v, &a, NULL);
}

/* With all outputs y = x wᵀ + b and their gradient d = cross_entropy_bwd(dy, y): dx = d w, dw = dᵀ x, db = Σ d. What arrives for these,
 * p, q and r, makes v = p wᵀ + x qᵀ + r for d, and beside it dᵀ p for w and d q for x. */
static PlStatus bwd_grad(PlMaker *g) {
  const PlVal x = g->x[1], w = narrow(g, 2, g->x[2]), b = narrow(g, 5, g->x[5]), p = g->dy[0], q = narrow(g, 2, g->dy[1]),
              r = narrow(g, 5, g->dy[2]);
  const PlVal line[3] = {x, w, b};
  PlAttrs a;
  pl_attrs_init(&pl_op_cross_entropy_bwd, &a);
  pl_attrs_int(&a, 0, pl_attr_i(g->attrs, REDUCTION) ? 2 : 0);
  pl_attrs_int(&a, 1, pl_attr_i(g->attrs, IGNORE));
  pl_attrs_int(&a, 2, pl_attr_i(g->attrs, BASE));
  pl_attrs_float(&a, 3, pl_attr_f(g->attrs, SMOOTHING));
  const PlVal y = pl_g_op(g, &pl_op_linear, b == PL_NONE ? 2 : 3, line, NULL, NULL);
  PlVal lse[2], v = PL_NONE, out[2] = {PL_NONE, PL_NONE};
  const PlVal first[3] = {y, g->x[3], g->x[6]}; /* anew: the log-sum-exp that was kept is a number to gradients of gradients */
  pl_g_op(g, &pl_op_cross_entropy, 3, first, &a, lse);
  const PlVal back[5] = {g->x[0], y, g->x[3], lse[1], g->x[6]};
  if (p != PL_NONE) v = pl_g2(g, &pl_op_linear, p, w);
  if (q != PL_NONE) v = plus(g, v, pl_g2(g, &pl_op_linear, x, q));
  if (r != PL_NONE) v = v == PL_NONE ? g_add(g, g_muln(g, y, 0), r) : g_add(g, v, r);
  if (v == PL_NONE) return g->status;
  const PlVal d = pl_g_op(g, &pl_op_cross_entropy_bwd, 5, back, &a, NULL);
  const PlVal second[6] = {g->x[0], y, g->x[3], lse[1], v, g->x[6]};
  pl_g_op(g, &pl_op_cross_entropy_bwd2, 6, second, &a, out);
  if (g->want[0]) g->dx[0] = out[0];
  if (g->want[1]) g->dx[1] = plus(g, pl_g2(g, &pl_op_matmul, out[1], w), q == PL_NONE ? PL_NONE : pl_g2(g, &pl_op_matmul, d, q));
  if (g->want[2]) {
    g->dx[2] = plus(g, pl_g_matmul(g, out[1], x, true, false), p == PL_NONE ? PL_NONE : pl_g_matmul(g, d, p, true, false));
    if (g->in[2]->dtype != g->in[1]->dtype) g->dx[2] = pl_g_cast(g, g->dx[2], (PlDtype)g->in[2]->dtype);
  }
  if (g->nin > 5 && g->in[5] && g->want[5]) {
    g->dx[5] = rows_summed(g, out[1]);
    if (g->in[5]->dtype != g->in[1]->dtype) g->dx[5] = pl_g_cast(g, g->dx[5], (PlDtype)g->in[5]->dtype);
  }
  return g->status;
}

#define FLAGS (PL_F_CONTIGUOUS | PL_F_INTERNAL | PL_F_POLY)
PL_OP(cross_entropy_linear,
      .doc = "The cross entropies of x[N,K] linear_weight[C,K]^T + linear_bias[C] with target[N], added up (or none: losses[N]), without "
             "ever having all outputs: chunk rows are made at a time, and again in backward. Losses of halves are f32, and weights "
             "beside an x of halves may be. Further output: logsumexp. nn.F.linear_cross_entropy has the mean, and chooses chunk.",
      .example = "local x, w = T.tensor { { 1, 0 }, { 0, 1 } }, T.tensor { { 2, 0 }, { 0, 2 } }\n"
                 "print((T.cross_entropy_linear(x, w, T.arange(2))))  --> 0.2539  -- f32[] cpu",
      .formula = "cross_entropy(linear(x, w, b), target)", .nin = 5, .nopt = 2, .nout = 2, .nvisible = 1, .spare = 2, .nattr = 5,
      .args = {"x", "linear_weight", "target", "linear_bias", "weight"}, .attrs = {ATTRS}, .cls = PL_HEAVY,
      .flags = PL_F_CONTIGUOUS | PL_F_NOMETHOD | PL_F_POLY, .infer = loss_infer, .grad = loss_grad, .flops = loss_flops,
      PL_KERNEL_EITHER(pl_host_cross_entropy_linear));
PL_OP(cross_entropy_linear_bwd, .doc = "The gradients of cross_entropy_linear, for x, linear_weight and linear_bias.", .nin = 7, .nopt = 2,
      .nout = 3, .nattr = 6, .args = {"dy", "x", "linear_weight", "target", "lse", "linear_bias", "weight"},
      .attrs = {ATTRS, A_INT_REQ("wanted")}, .cls = PL_HEAVY, .flags = FLAGS, .infer = bwd_infer, .grad = bwd_grad, .flops = both_flops,
      PL_KERNEL_EITHER(pl_host_cross_entropy_linear_bwd));
PL_OP(cross_entropy_linear_both,
      .doc = "cross_entropy_linear and its gradients, where dy does not depend on it: the outputs are made once.", .nin = 6, .nopt = 2,
      .nout = 4, .nattr = 6, .args = {"dy", "x", "linear_weight", "target", "linear_bias", "weight"}, .attrs = {ATTRS, A_INT_REQ("wanted")},
      .cls = PL_HEAVY, .flags = FLAGS | PL_F_NOGRAD_OK, .infer = both_infer, .flops = both_flops,
      PL_KERNEL_EITHER(pl_host_cross_entropy_linear_both));
