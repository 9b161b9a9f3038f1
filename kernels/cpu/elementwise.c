/* SPDX-License-Identifier: MIT
 * The elementwise engine. Loops only know contiguous runs (and one value for stride 0); everything else is
 * brought into that form here: dimensions are collapsed, the index space is cut into tiles of R rows by C
 * columns, operands that do not lie contiguously in a tile are gathered into small buffers (f16 and bf16
 * become f32 on the way), and results are scattered back. So layout never changes the bits of a result.
 * Steps: shortcut for small contiguous calls; plan; tiles, in parallel from serial_below() elements on. */
#include "kernels/cpu/copy.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/cpu/moves.h"
#include "kernels/cpu/transpose.h"

#include <string.h>

enum {
  MAX_IN = 3,
  MAX_OP = MAX_IN + 1,
  TILE_BYTES = 8192, /* of one operand in a tile with gathered operands: all stay in L1 */
  HALF_TILE = 512,   /* elements of a tile that is converted; measured, larger ones are slower */
  DIRECT = 16384,    /* elements of a tile that reads and writes in place, and of a parallel block */
  NARROW = 128,      /* rows shorter than this are joined into tiles */
  CROSS_ROWS = 64    /* rows of a tile some operand of which runs along the rows */
};

static const uint8_t arity[PLK_NEW] = {
#define PLK_EW(name, nin, result) [PLK_EW_##name] = nin,
#include "kernels/elementwise.def"
#undef PLK_EW
};

/* Rough time of an element in units of an addition's, for the choice between one thread and several:
 * waking the others costs about what PARALLEL_COST additions do. */
#define PARALLEL_COST ((int64_t)1 << 19)
static int cost_of(int code) {
  switch (code) {
    case PLK_EW_POW:
    case PLK_EW_FMOD:
    case PLK_EW_REMAINDER:
    case PLK_EW_FLOOR_DIVIDE:
    case PLK_EW_ERFC:
    case PLK_EW_ERFINV:
    case PLK_EW_LGAMMA:
    case PLK_EW_DIGAMMA:
    case PLK_EW_ATAN2:
    case PLK_EW_HYPOT: return 16;
    case PLK_EW_I0:
    case PLK_EW_I0E:
    case PLK_EW_I1:
    case PLK_EW_I1E:
    case PLK_EW_ERFCX:
    case PLK_EW_NDTRI:
    case PLK_EW_GAMMAINC:
    case PLK_EW_GAMMAINCC: return 64;
    case PLK_EW_RELU:
    case PLK_EW_RELU6:
    case PLK_EW_LEAKY_RELU:
    case PLK_EW_HARDTANH:
    case PLK_EW_COPYSIGN:
    case PLK_EW_RELU_BWD:
    case PLK_EW_SIGMOID_BWD:
    case PLK_EW_TANH_BWD:
    case PLK_EW_LEAKY_RELU_BWD: return 1;
    default: return code < PLK_EW_EXP ? 1 : code >= PLK_EW_ASIN && code <= PLK_EW_ATANH ? 8 : 4;
  }
}
static int64_t serial_below(int code) {
  const int64_t n = PARALLEL_COST / cost_of(code);
  return n > PLK_GRAIN ? n : PLK_GRAIN;
}

/* How the bytes of an operand become loop elements. */
enum { AS_IS = 0, HALF_F16, HALF_BF16 };

typedef struct Operand {
  char *base;
  int64_t stride[PL_MAX_DIM]; /* bytes */
  int32_t item, tile_item;    /* bytes of an element in memory, in a tile */
  int convert;
} Operand;

typedef struct Plan {
  PlkLoop loop;
  const PlAttrs *attrs;
  const PlkIsa *isa;
  const char *name;
  bool one_value; /* the loop takes stride 0 */
  bool copy;      /* a gathered tile is already the result */
  int nop, nd;
  int rdim;               /* dimension whose rows a tile joins, -1: none */
  int64_t rows, cols;     /* of a full tile */
  int64_t nrow, ncol;     /* tiles along them */
  int64_t shape[PL_MAX_DIM];
  Operand op[MAX_OP];
} Plan;

static const PlAttrs no_attrs;

/* ---- choice of a loop ---- */

static int size_log2(size_t size) { return size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3; }

/* The loop for elements of `dtype` (never a half type), NULL: the op does not take it. */
static PlkLoop find_loop(const PlkIsa *isa, int code, int dtype) {
  if (dtype <= PL_F64) {
    const PlkLoop l = dtype == PL_F32 ? isa->f32[code] : isa->f64[code];
    return l != NULL ? l : plk_ew_rare[code][dtype];
  }
  return plk_ew_int[code][dtype - PL_I8];
}

static int widened(int dtype) { return dtype == PL_F16 || dtype == PL_BF16 ? PL_F32 : dtype; }

static PlkLoop choose_loop(const PlkIsa *isa, const PlkCall *call) {
  const PlArray *out = call->out[0], *in = call->in[0];
  switch (call->code) {
    case PLK_EW_COPY: return isa->copy[size_log2(pl_dtype_size((PlDtype)out->dtype))];
    case PLK_EW_WHERE: return isa->where[size_log2(pl_dtype_size((PlDtype)out->dtype))];
    case PLK_EW_CAST:
      if (in->dtype == out->dtype) return isa->copy[size_log2(pl_dtype_size((PlDtype)out->dtype))];
      return isa->cast[plk_cast_index(widened(in->dtype))][plk_cast_index(widened(out->dtype))];
    default: return find_loop(isa, call->code, widened(in->dtype));
  }
}

static PlStatus no_loop(const PlkCall *call) {
  PL_FAIL(PL_ERR_DTYPE, "%s: not defined for %s", call->name,
          pl_dtype_name((PlDtype)call->in[0]->dtype));
}
static PlStatus loop_failed(const char *name) {
  PL_FAIL(PL_ERR_ARG, "%s: integer division by zero", name);
}
/* Two float inputs: every such loop takes one value in place of an array, but gradients. */
static bool takes_one_value(int code, int dtype) {
  return arity[code] == 2 && dtype <= PL_F64 && code < PLK_EW_RELU_BWD;
}

/* ---- tiles ---- */

#define MOVE(T)                                                                              \
  do {                                                                                       \
    if (rs < cs && rs != 0) {                                                                \
      for (int64_t c = 0; c < C; c++)                                                        \
        for (int64_t r = 0; r < R; r++) MOVE_ONE(T);                                         \
    } else {                                                                                 \
      for (int64_t r = 0; r < R; r++)                                                        \
        for (int64_t c = 0; c < C; c++) MOVE_ONE(T);                                         \
    }                                                                                        \
  } while (0)

static void gather(char *PL_RESTRICT to, const char *PL_RESTRICT from, int item, int64_t R,
                   int64_t C, int64_t rs, int64_t cs) {
#define MOVE_ONE(T) memcpy(to + (r * C + c) * (int64_t)sizeof(T), from + r * rs + c * cs, sizeof(T))
  if (cs == item && C * item >= 64) {
    for (int64_t r = 0; r < R; r++) memcpy(to + r * C * item, from + r * rs, (size_t)(C * item));
    return;
  }
  if (rs == item && cs > item) {
    plk_transpose((size_t)item)(to, C, from, cs / item, C, R);
    return;
  }
  switch (item) {
    case 1: MOVE(uint8_t); break;
    case 2: MOVE(uint16_t); break;
    case 4: MOVE(uint32_t); break;
    default: MOVE(uint64_t); break;
  }
#undef MOVE_ONE
}

static void scatter(char *PL_RESTRICT to, const char *PL_RESTRICT from, int item, int64_t R,
                    int64_t C, int64_t rs, int64_t cs) {
#define MOVE_ONE(T) memcpy(to + r * rs + c * cs, from + (r * C + c) * (int64_t)sizeof(T), sizeof(T))
  if (cs == item && C * item >= 64) {
    for (int64_t r = 0; r < R; r++) memcpy(to + r * rs, from + r * C * item, (size_t)(C * item));
    return;
  }
  if (rs == item && cs > item) {
    plk_transpose((size_t)item)(to, cs / item, from, C, R, C);
    return;
  }
  switch (item) {
    case 1: MOVE(uint8_t); break;
    case 2: MOVE(uint16_t); break;
    case 4: MOVE(uint32_t); break;
    default: MOVE(uint64_t); break;
  }
#undef MOVE_ONE
}

/* Buffers of one thread. What a buffer holds is remembered: a broadcast operand is gathered once for a
 * whole row of tiles. */
typedef struct Workspace {
  _Alignas(64) char tile[MAX_OP][TILE_BYTES + 320]; /* not a multiple of 4096 apart: aliasing */
  _Alignas(64) uint16_t half[TILE_BYTES / 4];
  const char *held[MAX_OP];
  int64_t held_r[MAX_OP], held_c[MAX_OP];
} Workspace;

static bool lies_contiguous(const Operand *o, int64_t R, int64_t C, int64_t rs, int64_t cs) {
  return (cs == o->item || C == 1) && (R == 1 || rs == C * o->item);
}

/* An input of the tile at `at` in the form that loops take; sets *stride. */
static char *load(const Plan *p, Workspace *w, int k, char *at, int64_t R, int64_t C, int64_t rs,
                  int64_t cs, int64_t *stride) {
  const Operand *o = &p->op[k];
  const bool one = (cs == 0 || C == 1) && (rs == 0 || R == 1) && R * C > 1;
  *stride = o->tile_item;
  if (one && p->one_value) {
    *stride = 0;
    R = C = 1;
  }
  const bool flat = (one && p->one_value) || lies_contiguous(o, R, C, rs, cs);
  if (flat && o->convert == AS_IS) return at;
  char *const tile = w->tile[k];
  if (w->held[k] == at && w->held_r[k] == R && w->held_c[k] == C) return tile;
  w->held[k] = at, w->held_r[k] = R, w->held_c[k] = C;
  if (o->convert == AS_IS) {
    gather(tile, at, o->item, R, C, rs, cs);
    return tile;
  }
  const uint16_t *h = (const uint16_t *)(const void *)at;
  if (!flat) {
    gather((char *)w->half, at, 2, R, C, rs, cs);
    h = w->half;
  }
  const PlkConvert *cv = p->isa->convert;
  (o->convert == HALF_F16 ? cv->f16_load : cv->bf16_load)(h, (float *)(void *)tile, R * C);
  return tile;
}

static void store(const Plan *p, Workspace *w, const char *tile, char *at, int64_t R, int64_t C,
                  int64_t rs, int64_t cs) {
  const Operand *o = &p->op[0];
  if (o->convert == AS_IS) {
    scatter(at, tile, o->item, R, C, rs, cs);
    return;
  }
  const PlkConvert *cv = p->isa->convert;
  const bool flat = lies_contiguous(o, R, C, rs, cs);
  uint16_t *const h = flat ? (uint16_t *)(void *)at : w->half;
  (o->convert == HALF_F16 ? cv->f16_store : cv->bf16_store)((const float *)(const void *)tile, h,
                                                           R * C);
  if (!flat) scatter(at, (const char *)w->half, 2, R, C, rs, cs);
}

static int run_tile(const Plan *p, Workspace *w, char *const *at, int64_t R, int64_t C) {
  const int inner = p->nd - 1;
  char *ptr[MAX_OP];
  int64_t stride[MAX_OP] = {p->op[0].tile_item};
  for (int k = 1; k < p->nop; k++) {
    const int64_t rs = p->rdim < 0 ? 0 : p->op[k].stride[p->rdim];
    ptr[k] = load(p, w, k, at[k], R, C, rs, p->op[k].stride[inner], &stride[k]);
  }
  if (stride[1] == 0 && stride[2] == 0) { /* both inputs of a pair are one value: spread one */
    const int64_t n = R * C;
    gather(w->tile[1], ptr[1], p->op[1].tile_item, 1, n, 0, 0);
    w->held[1] = NULL;
    ptr[1] = w->tile[1], stride[1] = p->op[1].tile_item;
  }
  const int64_t rs = p->rdim < 0 ? 0 : p->op[0].stride[p->rdim], cs = p->op[0].stride[inner];
  const bool in_place = p->op[0].convert == AS_IS && lies_contiguous(&p->op[0], R, C, rs, cs);
  if (!in_place && p->copy) {
    store(p, w, ptr[1], at[0], R, C, rs, cs);
    return 0;
  }
  ptr[0] = in_place ? at[0] : w->tile[0];
  if (p->loop(ptr, stride, R * C, p->attrs)) return 1;
  if (!in_place) store(p, w, ptr[0], at[0], R, C, rs, cs);
  return 0;
}

/* Tiles [begin, end): column tiles run fastest, then row tiles, then the other dimensions. */
static PlStatus run_tiles(void *ctx, int64_t begin, int64_t end) {
  const Plan *p = ctx;
  Workspace w;
  for (int k = 0; k < MAX_OP; k++) w.held[k] = NULL;
  const int inner = p->nd - 1;
  for (int64_t t = begin; t < end; t++) {
    const int64_t ct = t % p->ncol, rt = t / p->ncol % p->nrow;
    int64_t rest = t / p->ncol / p->nrow;
    char *at[MAX_OP];
    for (int k = 0; k < p->nop; k++) {
      const Operand *o = &p->op[k];
      at[k] = o->base + ct * p->cols * o->stride[inner];
      if (p->rdim >= 0) at[k] += rt * p->rows * o->stride[p->rdim];
    }
    for (int d = inner - 1; d >= 0 && rest != 0; d--) {
      if (d == p->rdim) continue;
      const int64_t i = rest % p->shape[d];
      rest /= p->shape[d];
      for (int k = 0; k < p->nop; k++) at[k] += i * p->op[k].stride[d];
    }
    const int64_t C = ct == p->ncol - 1 ? p->shape[inner] - ct * p->cols : p->cols;
    const int64_t R = p->rdim < 0             ? 1
                      : rt == p->nrow - 1 ? p->shape[p->rdim] - rt * p->rows
                                          : p->rows;
    if (run_tile(p, &w, at, R, C)) return loop_failed(p->name);
  }
  return PL_OK;
}

/* ---- plan ---- */

static void swap_dims(Plan *p, int a, int b) {
  const int64_t s = p->shape[a];
  p->shape[a] = p->shape[b], p->shape[b] = s;
  for (int k = 0; k < p->nop; k++) {
    int64_t *st = p->op[k].stride;
    const int64_t v = st[a];
    st[a] = st[b], st[b] = v;
  }
}

/* Bring every operand to the output's rank, without dimensions of size 1, largest output stride first. */
static void set_dims(Plan *p, const PlArray *const *arr) {
  const PlArray *out = arr[0];
  p->nd = 0;
  for (int d = 0; d < out->ndim; d++) {
    if (out->shape[d] == 1) continue;
    p->shape[p->nd] = out->shape[d];
    for (int k = 0; k < p->nop; k++) {
      const int e = d - (out->ndim - arr[k]->ndim);
      const bool real = e >= 0 && arr[k]->shape[e] != 1;
      p->op[k].stride[p->nd] = real ? arr[k]->strides[e] * p->op[k].item : 0;
    }
    p->nd++;
  }
  for (int i = 1; i < p->nd; i++) /* stable insertion sort */
    for (int j = i; j > 0 && p->op[0].stride[j - 1] < p->op[0].stride[j]; j--)
      swap_dims(p, j - 1, j);
}

/* Join neighbours that are one run in every operand. */
static void collapse(Plan *p) {
  int w = 0; /* last kept dimension */
  for (int d = 1; d < p->nd; d++) {
    bool join = true;
    for (int k = 0; k < p->nop && join; k++)
      join = p->op[k].stride[w] == p->op[k].stride[d] * p->shape[d];
    if (join) {
      p->shape[w] *= p->shape[d];
    } else {
      w++;
      p->shape[w] = p->shape[d];
    }
    for (int k = 0; k < p->nop; k++) p->op[k].stride[w] = p->op[k].stride[d];
  }
  if (p->nd == 0) {
    p->shape[0] = 1;
    for (int k = 0; k < p->nop; k++) p->op[k].stride[0] = p->op[k].item;
  }
  p->nd = p->nd == 0 ? 1 : w + 1;
}

/* A dimension along which some operand runs contiguously although it does not along the last; -1: none. */
static int crossing_dim(const Plan *p) {
  const int inner = p->nd - 1;
  for (int k = 0; k < p->nop; k++) {
    const int64_t *st = p->op[k].stride;
    if (st[inner] == p->op[k].item || st[inner] == 0) continue;
    for (int d = inner - 1; d >= 0; d--)
      if (st[d] == p->op[k].item && p->shape[d] > 1) return d;
  }
  return -1;
}

static void cut(Plan *p) {
  const int inner = p->nd - 1;
  const int64_t n = p->shape[inner];
  bool direct = true, halves = false;
  int widest = 1;
  for (int k = 0; k < p->nop; k++) {
    const Operand *o = &p->op[k];
    if (o->tile_item > widest) widest = o->tile_item;
    halves = halves || o->convert != AS_IS;
    const bool one = k > 0 && o->stride[inner] == 0 && p->one_value;
    direct = direct && o->convert == AS_IS && (o->stride[inner] == o->item || one || n == 1);
  }
  if (p->one_value && p->op[1].stride[inner] == 0 && p->op[2].stride[inner] == 0) direct = false;
  const int cross = crossing_dim(p);
  p->rdim = -1, p->rows = 1, p->nrow = 1;
  const int tile = halves && cross < 0 ? HALF_TILE : TILE_BYTES / widest;
  p->cols = direct ? DIRECT : tile;
  if (cross >= 0) {
    p->rdim = cross, p->rows = CROSS_ROWS, p->cols = tile / CROSS_ROWS;
  } else if (n < NARROW && p->nd > 1) {
    p->rdim = inner - 1, p->rows = tile / n;
  }
  if (p->cols > n) p->cols = n;
  p->ncol = (n + p->cols - 1) / p->cols;
  if (p->rdim < 0) return;
  if (p->rows > p->shape[p->rdim]) p->rows = p->shape[p->rdim];
  p->nrow = (p->shape[p->rdim] + p->rows - 1) / p->rows;
}

static int half_kind(int dtype) {
  return dtype == PL_F16 ? HALF_F16 : dtype == PL_BF16 ? HALF_BF16 : AS_IS;
}

static PlStatus run_plan(const PlkCall *call, const PlkIsa *isa, PlkLoop loop, const PlAttrs *attrs) {
  const PlArray *arr[MAX_OP] = {call->out[0]};
  Plan p = {.loop = loop, .attrs = attrs, .isa = isa, .name = call->name, .nop = call->nin + 1};
  const bool raw = call->code == PLK_EW_COPY || call->code == PLK_EW_WHERE ||
                   (call->code == PLK_EW_CAST && call->in[0]->dtype == call->out[0]->dtype);
  p.copy = raw && call->nin == 1;
  p.one_value = takes_one_value(call->code, widened(call->in[0]->dtype));
  for (int k = 0; k < p.nop; k++) {
    if (k > 0) arr[k] = call->in[k - 1];
    Operand *o = &p.op[k];
    o->base = arr[k]->data;
    o->item = (int32_t)pl_dtype_size((PlDtype)arr[k]->dtype);
    o->convert = raw ? AS_IS : half_kind(arr[k]->dtype);
    o->tile_item = o->convert != AS_IS ? 4 : o->item;
  }
  set_dims(&p, arr);
  collapse(&p);
  cut(&p);
  int64_t ntile = p.ncol * p.nrow;
  for (int d = 0; d < p.nd - 1; d++)
    if (d != p.rdim) ntile *= p.shape[d];
  const int64_t per_block = (DIRECT + p.rows * p.cols - 1) / (p.rows * p.cols);
  if (call->out[0]->numel < serial_below(call->code) && ntile < 64 * per_block)
    return run_tiles(&p, 0, ntile);
  return plk_parallel(ntile, per_block, run_tiles, &p);
}

/* nan_to_num of halves: the default bounds are the type's own, not f32's. */
static void half_bounds(PlAttrs *a, int dtype) {
  const double top = dtype == PL_F16 ? 65504.0 : 0x1.fep127;
  for (int k = 1; k <= 2; k++) {
    if (pl_attr_has(a, k)) continue;
    a->set = (uint16_t)(a->set | 1u << k);
    a->isint = (uint16_t)(a->isint & ~(1u << k));
    a->v[k].f = k == 1 ? top : -top;
  }
}

/* One or two inputs that lie like the output, nothing to convert. */
static bool same_flat(const PlkCall *call, int64_t n) {
  const PlArray *o = call->out[0], *a = call->in[0], *b = call->in[call->nin - 1];
  const unsigned halves = 1U << PL_F16 | 1U << PL_BF16;
  return call->nin <= 2 && (o->contiguous & a->contiguous & b->contiguous) && a->numel == n && b->numel == n &&
         !((1U << o->dtype | 1U << a->dtype | 1U << b->dtype) & halves);
}

static PlStatus copy(const PlkCall *call) {
  PlkNd w;
  if (call->out[0]->data == call->in[0]->data) return PL_OK; /* the very same array */
  plk_nd_walk(&w, call->out[0], call->in[0]);
  return plk_nd_copy(call->out[0]->data, call->in[0]->data, &w, pl_dtype_size((PlDtype)call->out[0]->dtype));
}

PlStatus plk_cpu_elementwise(const PlkCall *call) {
  const PlArray *out = call->out[0];
  const PlkIsa *isa = plk_isa_tables();
  const PlkLoop loop = choose_loop(isa, call);
  if (PL_UNLIKELY(loop == NULL)) return no_loop(call);
  const int64_t n = out->numel;
  if (n == 0) return PL_OK;
  const PlAttrs *attrs = call->attrs != NULL ? call->attrs : &no_attrs;
  if (n < PLK_GRAIN && same_flat(call, n)) { /* most calls of small models */
    char *all[MAX_OP] = {out->data, call->in[0]->data, call->in[call->nin - 1]->data};
    static const int64_t ones[MAX_OP] = {1, 1, 1, 1};
    return loop(all, ones, n, attrs) ? loop_failed(call->name) : PL_OK;
  }
  bool flat = (n < PLK_GRAIN || n < serial_below(call->code)) && out->contiguous && half_kind(out->dtype) == AS_IS;
  char *ptr[MAX_OP] = {out->data};
  int64_t stride[MAX_OP] = {1, 1, 1, 1};
  for (int k = 0; k < call->nin && flat; k++) {
    const PlArray *in = call->in[k];
    ptr[k + 1] = in->data;
    flat = half_kind(in->dtype) == AS_IS;
    if (in->numel == n && in->contiguous) continue;
    stride[k + 1] = 0;
    flat = flat && in->numel == 1 && takes_one_value(call->code, in->dtype) &&
           stride[1] + stride[2] != 0;
  }
  if (flat) return loop(ptr, stride, n, attrs) ? loop_failed(call->name) : PL_OK;
  if (call->code == PLK_EW_COPY || (call->code == PLK_EW_CAST && call->in[0]->dtype == out->dtype)) return copy(call);
  if (call->code == PLK_EW_NAN_TO_NUM && half_kind(out->dtype) != AS_IS) {
    PlAttrs own = *attrs;
    half_bounds(&own, out->dtype);
    return run_plan(call, isa, loop, &own);
  }
  return run_plan(call, isa, loop, attrs);
}

PlkLoop plk_cpu_elementwise_loop(int code, int dtype, bool one_value) {
  const PlkIsa *isa = plk_isa_tables();
  if (one_value && !takes_one_value(code, dtype)) return NULL;
  return dtype == PL_F32 ? isa->f32[code] : isa->f64[code];
}
