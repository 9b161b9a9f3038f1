/* SPDX-License-Identifier: MIT
 * The elementwise engine's tiles (elementwise_tiles.h): dimensions are collapsed, the index space is cut into tiles of R
 * rows by C columns, operands that are not contiguous in a tile are gathered into small buffers (f16 and bf16 become
 * f32 on the way), and results are scattered back. So layout never changes the bits of a result. */
#include "kernels/cpu/elementwise/elementwise_tiles.h"

#include <string.h>

#include "kernels/cpu/shape/copy.h"
#include "kernels/cpu/shape/transpose.h"

enum {
  MAX_OP = PLK_EW_MAX_OP,
  TILE_BYTES = 8192,   /* of one operand in a tile with gathered operands: all stay in L1 */
  CROSS_BYTES = 32768, /* the same where one runs along the rows, in few of them: so the others' rows are long */
  HALF_TILE = 512,     /* elements of a tile that is converted; measured, larger ones are slower */
  DIRECT = PLK_EW_DIRECT,
  NARROW = 128, /* rows shorter than this are joined into tiles */
  LINE = 64     /* bytes of an operand that runs along the rows of a tile: more rows touch more pages, less share lines of the cache */
};

/* How the bytes of an operand become loop elements. */
enum { AS_IS = 0, HALF_F16, HALF_BF16 };

typedef struct Operand {
  char *base;
  int64_t stride[PL_MAX_DIM]; /* bytes */
  int32_t item, tile_item;    /* bytes of an element in memory, in a tile */
  int convert;
  bool number;          /* a float that the loop takes beside halves as they are stored */
  const PlArray *array; /* whose data it is */
} Operand;

typedef struct Plan {
  PlkLoop loop;
  const PlAttrs *attrs;
  const PlkIsa *isa;
  const char *name;
  bool one_value; /* the loop takes stride 0 */
  bool stored;    /* and halves as they are */
  bool copy;      /* a gathered tile is already the result */
  int nop, nd;
  int rdim;           /* dimension whose rows a tile joins, -1: none */
  int64_t rows, cols; /* of a full tile */
  int64_t nrow, ncol; /* tiles along them */
  int64_t shape[PL_MAX_DIM];
  Operand op[MAX_OP];
} Plan;

/* C times the element at `from`. */
static void spread(char *PL_RESTRICT to, const char *PL_RESTRICT from, int item, int64_t C) {
#define SPREAD(T)                             \
  {                                           \
    T v, *PL_RESTRICT d = (T *)(void *)to;    \
    memcpy(&v, from, sizeof v);               \
    for (int64_t c = 0; c < C; c++) d[c] = v; \
    break;                                    \
  }
  switch (item) {
  case 1: memset(to, *(const uint8_t *)from, (size_t)C); break;
  case 2: SPREAD(uint16_t)
  case 4: SPREAD(uint32_t)
  default: SPREAD(uint64_t)
  }
#undef SPREAD
}

static void gather(char *PL_RESTRICT to, const char *PL_RESTRICT from, int item, int64_t R, int64_t C, int64_t rs, int64_t cs) {
  if (cs == item && C * item >= 64) {
    for (int64_t r = 0; r < R; r++) memcpy(to + r * C * item, from + r * rs, (size_t)(C * item));
    return;
  }
  if (rs == item && cs > item) {
    plk_transpose((size_t)item)(to, C, from, cs / item, C, R);
    return;
  }
  if (cs == 0 && C >= 8) {
    for (int64_t r = 0; r < R; r++) spread(to + r * C * item, from + r * rs, item, C);
    return;
  }
  plk_copy_loops()->window(to, C * item, 1, from, rs, cs / item, R, C, (size_t)item);
}

static void scatter(char *PL_RESTRICT to, const char *PL_RESTRICT from, int item, int64_t R, int64_t C, int64_t rs, int64_t cs) {
  if (cs == item && C * item >= 64) {
    for (int64_t r = 0; r < R; r++) memcpy(to + r * rs, from + r * C * item, (size_t)(C * item));
    return;
  }
  if (rs == item && cs > item) {
    plk_transpose((size_t)item)(to, cs / item, from, C, R, C);
    return;
  }
  plk_copy_loops()->window(to, rs, cs / item, from, C * item, 1, R, C, (size_t)item);
}

/* Buffers of one thread. What a buffer holds is remembered: a broadcast operand is gathered once for a
 * whole row of tiles. */
typedef struct Workspace {
  _Alignas(64) char tile[MAX_OP][CROSS_BYTES + 320]; /* not a multiple of 4096 apart: aliasing */
  _Alignas(64) uint16_t half[CROSS_BYTES / 4];
  float one[MAX_OP];
  const char *held[MAX_OP];
  int64_t held_r[MAX_OP], held_c[MAX_OP];
} Workspace;

static bool is_contiguous_tile(const Operand *o, int64_t R, int64_t C, int64_t rs, int64_t cs) {
  return (cs == o->item || C == 1) && (R == 1 || rs == C * o->item);
}

/* An input of the tile at `at` in the form that loops take; sets *stride. */
static char *load(const Plan *p, Workspace *w, int k, char *at, int64_t R, int64_t C, int64_t rs, int64_t cs, int64_t *stride) {
  const Operand *o = &p->op[k];
  const bool one = o->number || ((cs == 0 || C == 1) && (rs == 0 || R == 1) && R * C > 1);
  *stride = o->tile_item;
  if (one && p->one_value && p->stored) {
    *stride = 0;
    return (char *)(uintptr_t)plk_ew_one(o->array, at, &w->one[k]);
  }
  if (one && p->one_value) {
    *stride = 0;
    R = C = 1;
  }
  const bool flat = (one && p->one_value) || is_contiguous_tile(o, R, C, rs, cs);
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

static void store(const Plan *p, Workspace *w, const char *tile, char *at, int64_t R, int64_t C, int64_t rs, int64_t cs) {
  const Operand *o = &p->op[0];
  if (o->convert == AS_IS) {
    scatter(at, tile, o->item, R, C, rs, cs);
    return;
  }
  const PlkConvert *cv = p->isa->convert;
  const bool flat = is_contiguous_tile(o, R, C, rs, cs);
  uint16_t *const h = flat ? (uint16_t *)(void *)at : w->half;
  (o->convert == HALF_F16 ? cv->f16_store : cv->bf16_store)((const float *)(const void *)tile, h, R * C);
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
  if (stride[1] == 0 && stride[2] == 0 && !p->stored) { /* both inputs of a pair are one value: spread one */
    const int64_t n = R * C;
    gather(w->tile[1], ptr[1], p->op[1].tile_item, 1, n, 0, 0);
    w->held[1] = NULL;
    ptr[1] = w->tile[1], stride[1] = p->op[1].tile_item;
  }
  const int64_t rs = p->rdim < 0 ? 0 : p->op[0].stride[p->rdim], cs = p->op[0].stride[inner];
  const bool in_place = p->op[0].convert == AS_IS && is_contiguous_tile(&p->op[0], R, C, rs, cs);
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
    const int64_t R = p->rdim < 0 ? 1 : rt == p->nrow - 1 ? p->shape[p->rdim] - rt * p->rows : p->rows;
    if (run_tile(p, &w, at, R, C)) return plk_ew_failed(p->name);
  }
  return PL_OK;
}

/* The same where every tile is a piece of a row that reads and writes in place: nothing but the loop. */
static PlStatus run_direct(void *ctx, int64_t begin, int64_t end) {
  const Plan *p = ctx;
  const int inner = p->nd - 1;
  const int64_t n = p->shape[inner];
  int64_t at[PL_MAX_DIM], stride[MAX_OP], ct = begin % p->ncol, rest = begin / p->ncol;
  char *row[MAX_OP], *ptr[MAX_OP];
  float one[MAX_OP];
  for (int d = inner - 1; d >= 0; d--) at[d] = rest % p->shape[d], rest /= p->shape[d];
  for (int k = 0; k < p->nop; k++) {
    const Operand *o = &p->op[k];
    row[k] = o->base;
    for (int d = 0; d < inner; d++) row[k] += at[d] * o->stride[d];
    stride[k] = k > 0 && ((n > 1 && o->stride[inner] == 0) || o->number) ? 0 : o->item;
  }
  for (int64_t t = begin; t < end; t++) {
    for (int k = 0; k < p->nop; k++) {
      ptr[k] = row[k] + ct * p->cols * p->op[k].stride[inner];
      if (p->stored && stride[k] == 0) ptr[k] = (char *)(uintptr_t)plk_ew_one(p->op[k].array, ptr[k], &one[k]);
    }
    if (p->loop(ptr, stride, ct == p->ncol - 1 ? n - ct * p->cols : p->cols, p->attrs)) return plk_ew_failed(p->name);
    if (++ct < p->ncol) continue;
    ct = 0;
    for (int d = inner - 1; d >= 0; d--) {
      for (int k = 0; k < p->nop; k++) row[k] += p->op[k].stride[d];
      if (++at[d] < p->shape[d]) break;
      for (int k = 0; k < p->nop; k++) row[k] -= at[d] * p->op[k].stride[d];
      at[d] = 0;
    }
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
    for (int j = i; j > 0 && p->op[0].stride[j - 1] < p->op[0].stride[j]; j--) swap_dims(p, j - 1, j);
}

/* Join neighbours that are one run in every operand. */
static void collapse(Plan *p) {
  int w = 0; /* last kept dimension */
  for (int d = 1; d < p->nd; d++) {
    bool join = true;
    for (int k = 0; k < p->nop && join; k++) join = p->op[k].stride[w] == p->op[k].stride[d] * p->shape[d];
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

/* A dimension along which some operand, of *item bytes, runs contiguously although it does not along the last; -1: none. */
static int crossing_dim(const Plan *p, int *item) {
  const int inner = p->nd - 1;
  for (int k = 0; k < p->nop; k++) {
    const int64_t *st = p->op[k].stride;
    if (st[inner] == p->op[k].item || st[inner] == 0) continue;
    for (int d = inner - 1; d >= 0; d--)
      if (st[d] == p->op[k].item && p->shape[d] > 1) {
        *item = p->op[k].item;
        return d;
      }
  }
  return -1;
}

/* Whether all tiles are read and written in place. */
static bool cut(Plan *p) {
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
  int item = 1;
  const int cross = crossing_dim(p, &item);
  p->rdim = -1, p->rows = 1, p->nrow = 1;
  const int tile = cross >= 0 ? CROSS_BYTES / widest : halves ? HALF_TILE : TILE_BYTES / widest;
  p->cols = direct ? DIRECT : tile;
  if (cross >= 0) {
    p->rdim = cross, p->rows = LINE / item, p->cols = tile / p->rows;
  } else if (n < NARROW && p->nd > 1) {
    p->rdim = inner - 1, p->rows = tile / n;
  }
  if (p->cols > n) p->cols = n;
  p->ncol = (n + p->cols - 1) / p->cols;
  if (p->rdim < 0) return direct;
  if (p->rows > p->shape[p->rdim]) p->rows = p->shape[p->rdim];
  p->nrow = (p->shape[p->rdim] + p->rows - 1) / p->rows;
  return false;
}

static int half_kind(int dtype) { return dtype == PL_F16 ? HALF_F16 : dtype == PL_BF16 ? HALF_BF16 : AS_IS; }

PlStatus plk_ew_tiles(const PlkEwCall *e) {
  const PlkCall *call = e->call;
  const PlArray *arr[MAX_OP] = {call->out[0]};
  Plan p = {.loop = e->loop,
            .attrs = e->attrs,
            .isa = e->isa,
            .name = call->name,
            .nop = call->nin + 1,
            .one_value = e->one_value,
            .stored = e->stored};
  const bool raw =
      call->code == PLK_EW_COPY || call->code == PLK_EW_WHERE || (call->code == PLK_EW_CAST && call->in[0]->dtype == call->out[0]->dtype);
  p.copy = raw && call->nin == 1;
  for (int k = 0; k < p.nop; k++) {
    if (k > 0) arr[k] = call->in[k - 1];
    Operand *o = &p.op[k];
    o->base = arr[k]->data;
    o->item = (int32_t)pl_dtype_size((PlDtype)arr[k]->dtype);
    o->convert = raw || e->stored ? AS_IS : half_kind(arr[k]->dtype);
    o->tile_item = o->convert != AS_IS ? 4 : o->item;
    o->array = arr[k];
    o->number = e->stored && k > 0 && arr[k]->dtype == PL_F32;
  }
  set_dims(&p, arr);
  collapse(&p);
  const PlkBody body = cut(&p) ? run_direct : run_tiles;
  int64_t ntile = p.ncol * p.nrow;
  for (int d = 0; d < p.nd - 1; d++)
    if (d != p.rdim) ntile *= p.shape[d];
  const int64_t per_block = (DIRECT + p.rows * p.cols - 1) / (p.rows * p.cols);
  if (call->out[0]->numel < e->serial && ntile < 64 * per_block) return body(&p, 0, ntile);
  return plk_parallel(ntile, per_block, body, &p);
}
