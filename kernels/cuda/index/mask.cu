/* SPDX-License-Identifier: MIT
 * Bool masks: filling, selecting, scattering, and the positions of what is not zero. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/cuda/index/index.h"
extern "C" {
#include "kernels/elementwise_codes.h"
#include "kernels/reduce.h"
}

enum { EACH = 8, TILE = PLC_BLOCK * EACH };

/* ---- positions of what is not 0 ------------------------------------------------------------------------------------------ */

PLC_DEV bool set_at(const plc_layout<1> &l, const void *x, int dtype, int64_t i) {
  int64_t at[1];
  if (i >= l.numel) return false;
  plc_offsets<1>(l, i, at);
  return plc_get_f(x, dtype, at[0]) != 0;
}
/* A block a tile: how many are set. */
__global__ void count_set(plc_layout<1> l, const void *x, int dtype, int64_t *counts) {
  __shared__ int room[32];
  int n = 0;
  for (int k = 0; k < EACH; k++) n += set_at(l, x, dtype, (int64_t)blockIdx.x * TILE + k * PLC_BLOCK + threadIdx.x);
  n = plc_block_all(n, plc_sum(), 0, room);
  if (threadIdx.x == 0) counts[blockIdx.x] = n;
}
/* upto: how many are set in tiles up to and with each. */
__global__ void put_set(plc_layout<1> l, const void *x, int dtype, const int64_t *upto, int64_t *positions) {
  __shared__ int warp_n[PLC_BLOCK / 32];
  const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  int64_t at = blockIdx.x > 0 ? upto[blockIdx.x - 1] : 0;
  for (int k = 0; k < EACH; k++) {
    const int64_t i = (int64_t)blockIdx.x * TILE + k * PLC_BLOCK + threadIdx.x;
    const bool on = set_at(l, x, dtype, i);
    const unsigned all = __ballot_sync(0xffffffffu, on);
    if (lane == 0) warp_n[warp] = __popc(all);
    __syncthreads();
    int64_t to = at + __popc(all & ((1u << lane) - 1u));
    for (int w = 0; w < PLC_BLOCK / 32; w++) {
      if (w < warp) to += warp_n[w];
      at += warp_n[w];
    }
    if (on) positions[to] = i;
    __syncthreads(); /* warp_n was read by all */
  }
}

PlStatus plc_running_sum(int64_t *v, int64_t n) {
  int64_t shape[1] = {n}, strides[1] = {1};
  PlArray a;
  memset(&a, 0, sizeof a);
  a.data = v, a.numel = n, a.shape = shape, a.strides = strides, a.dtype = PL_I64, a.ndim = 1, a.contiguous = 1, a.device = PL_CUDA;
  PlAttrs attrs;
  memset(&attrs, 0, sizeof attrs);
  attrs.nval = 1, attrs.set = 1;
  const PlArray *in[1] = {&a};
  PlArray *out[1] = {&a};
  PlkCall k;
  memset(&k, 0, sizeof k);
  k.name = "cumsum", k.code = PLK_S_CUMSUM, k.nin = k.nout = 1, k.in = in, k.out = out, k.attrs = &attrs;
  return plc_run(&plc_kernel_scan, &k);
}

static PlStatus count_tiles(const plc_layout<1> &l, const PlArray *a, int64_t tiles, int64_t *counts, int64_t *count) {
  PLC_LAUNCH(count_set, (unsigned)tiles, PLC_BLOCK, 0, l, (const void *)a->data, (int)a->dtype, counts);
  PL_TRY(plc_running_sum(counts, tiles));
  return plc_download(count, counts + tiles - 1, sizeof *count);
}
static PlStatus put_tiles(const plc_layout<1> &l, const PlArray *a, int64_t tiles, const int64_t *upto, int64_t *found) {
  PLC_LAUNCH(put_set, (unsigned)tiles, PLC_BLOCK, 0, l, (const void *)a->data, (int)a->dtype, upto, found);
  return PL_OK;
}

PlStatus plc_nonzero(const PlArray *a, int64_t **positions, int64_t *count) {
  const PlArray *arr[1] = {a};
  plc_layout<1> l;
  const int64_t tiles = (a->numel + TILE - 1) / TILE;
  void *counts = NULL, *found = NULL;
  plc_layout_of<1>(&l, arr);
  *count = 0;
  if (tiles > INT32_MAX) PL_FAIL(PL_ERR_UNSUPPORTED, "a mask of %lld elements is more than the device's kernel takes", (long long)a->numel);
  PL_TRY(plc_scratch((size_t)(tiles + 1) * sizeof(int64_t), &counts));
  PlStatus s = tiles ? count_tiles(l, a, tiles, (int64_t *)counts, count) : PL_OK;
  if (s == PL_OK) s = plc_scratch((size_t)(*count ? *count : 1) * sizeof(int64_t), &found);
  if (s == PL_OK && *count) s = put_tiles(l, a, tiles, (const int64_t *)counts, (int64_t *)found);
  plc_scratch_free(counts);
  if (s != PL_OK) plc_scratch_free(found);
  else *positions = (int64_t *)found;
  return s;
}

/* ---- masks ------------------------------------------------------------------------------------------------------------- */

/* y = mask ? value : x */
static PlStatus masked_fill(const PlkCall *c) {
  PlArray *y = c->out[0];
  const PlArray *v = c->in[2];
  void *scratch = NULL;
  PlArray cast = *v, *to[1] = {&cast};
  PlStatus s = PL_OK;
  if (v->dtype != y->dtype) { /* one number */
    s = plc_scratch(16, &scratch);
    cast.data = scratch, cast.dtype = y->dtype, cast.device = PL_CUDA;
    const PlArray *from[1] = {v};
    PlkCall k = *c;
    k.code = PLK_EW_CAST, k.nin = 1, k.in = from, k.out = to;
    if (s == PL_OK) s = plc_run(&plc_kernel_elementwise, &k);
  }
  const PlArray *in[3] = {c->in[1], &cast, c->in[0]};
  PlkCall k = *c;
  k.code = PLK_EW_WHERE, k.nin = 3, k.in = in;
  if (s == PL_OK) s = plc_run(&plc_kernel_elementwise, &k);
  plc_scratch_free(scratch);
  return s;
}
PLC_KERNEL(masked_fill, masked_fill)

/* Element number positions[i] of a broadcast array, by its layout; forward: to[i] = from[that], else to[that] = from[i]. */
template <typename T>
__global__ void by_positions(int64_t n, const int64_t *positions, plc_layout<1> l, bool forward, const T *from, int64_t count, T *to) {
  for (PLC_EACH(i, n)) {
    int64_t at[1];
    plc_offsets<1>(l, positions[i], at);
    if (forward) to[i] = from[at[0]];
    else if (i < count) to[at[0]] = from[i];
  }
}
static void expanded(const PlArray *x, int ndim, const int64_t *shape, int64_t numel, plc_layout<1> *l, PlArray *room, int64_t *strides) {
  *room = *x;
  for (int d = 0; d < ndim; d++) {
    int at = d - (ndim - x->ndim);
    strides[d] = at < 0 || x->shape[at] == 1 ? 0 : x->strides[at];
  }
  room->ndim = (uint8_t)ndim, room->shape = shape, room->strides = strides, room->numel = numel;
  const PlArray *arr[1] = {room};
  plc_layout_of<1>(l, arr);
}
static void common_shape(const PlArray *a, const PlArray *b, int *ndim, int64_t *shape, int64_t *numel) {
  *ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
  *numel = 1;
  for (int d = 0; d < *ndim; d++) {
    int i = d - (*ndim - a->ndim), j = d - (*ndim - b->ndim);
    int64_t x = i >= 0 ? a->shape[i] : 1, y = j >= 0 ? b->shape[j] : 1;
    shape[d] = x == 1 ? y : x;
    *numel *= shape[d];
  }
}

static PlStatus masked_select(const PlkCall *c) {
  const PlArray *x = c->in[0], *m = c->in[1];
  PlArray *y = c->out[0], room;
  int64_t shape[PL_MAX_DIM], strides[PL_MAX_DIM], numel, *found, count;
  int nd;
  plc_layout<1> l;
  common_shape(x, m, &nd, shape, &numel);
  expanded(m, nd, shape, numel, &l, &room, strides);
  PL_TRY(plc_nonzero(&room, &found, &count));
  expanded(x, nd, shape, numel, &l, &room, strides);
  if (count > y->numel) count = y->numel;
  if (count)
    PLC_BITS(y->dtype, T,
             PLC_LAUNCH(by_positions<T>, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, l, true, (const T *)x->data,
                        count, (T *)y->data));
  plc_scratch_free(found);
  return PL_OK;
}
PLC_KERNEL(masked_select, masked_select)

static PlStatus from_mask(const PlArray *m, int nd, const int64_t *shape, int64_t numel, int64_t **found, int64_t *count) {
  int64_t strides[PL_MAX_DIM];
  PlArray room;
  plc_layout<1> l;
  expanded(m, nd, shape, numel, &l, &room, strides);
  return plc_nonzero(&room, found, count);
}
static PlStatus masked_select_bwd(const PlkCall *c) { /* dy, mask: dx of the mask's broadcast shape */
  PlArray *dx = c->out[0], room;
  const PlArray *dy = c->in[0];
  int64_t strides[PL_MAX_DIM], *found, count;
  plc_layout<1> l;
  PL_TRY(clear(dx));
  PL_TRY(from_mask(c->in[1], dx->ndim, dx->shape, dx->numel, &found, &count));
  expanded(dx, dx->ndim, dx->shape, dx->numel, &l, &room, strides);
  if (count)
    PLC_BITS(dx->dtype, T,
             PLC_LAUNCH(by_positions<T>, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, l, false, (const T *)dy->data,
                        dy->numel, (T *)dx->data));
  plc_scratch_free(found);
  return PL_OK;
}
static PlStatus masked_scatter(const PlkCall *c) {
  const PlArray *x = c->in[0], *src = c->in[2];
  PlArray *y = c->out[0], room;
  int64_t strides[PL_MAX_DIM], *found, count;
  plc_layout<1> l;
  PL_TRY(from_mask(c->in[1], y->ndim, y->shape, y->numel, &found, &count));
  PlStatus s = PL_OK;
  if (count > src->numel)
    s = pl_fail(PL_ERR_SHAPE, "%s: the mask has %lld trues, but src only %lld elements", c->name, (long long)count, (long long)src->numel);
  if (s == PL_OK && y->data != x->data) s = plc_run(&plc_kernel_copy, c);
  expanded(y, y->ndim, y->shape, y->numel, &l, &room, strides);
  if (s == PL_OK && count)
    PLC_BITS(y->dtype, T,
             PLC_LAUNCH(by_positions<T>, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, l, false, (const T *)src->data,
                        src->numel, (T *)y->data));
  plc_scratch_free(found);
  return s;
}
static PlStatus masked_scatter_bwd(const PlkCall *c) { /* dy, mask: dsrc[i] = dy[position i] */
  const PlArray *dy = c->in[0];
  PlArray *ds = c->out[0], room;
  int64_t strides[PL_MAX_DIM], *found, count;
  plc_layout<1> l;
  PL_TRY(clear(ds));
  PL_TRY(from_mask(c->in[1], dy->ndim, dy->shape, dy->numel, &found, &count));
  expanded(dy, dy->ndim, dy->shape, dy->numel, &l, &room, strides);
  if (count > ds->numel) count = ds->numel;
  if (count)
    PLC_BITS(ds->dtype, T,
             PLC_LAUNCH(by_positions<T>, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, l, true, (const T *)dy->data,
                        count, (T *)ds->data));
  plc_scratch_free(found);
  return PL_OK;
}
PLC_KERNEL(masked_select_bwd, masked_select_bwd)
PLC_KERNEL(masked_scatter, masked_scatter)
PLC_KERNEL(masked_scatter_bwd, masked_scatter_bwd)

struct Shape {
  int n;
  int64_t size[PL_MAX_DIM];
};
__global__ void coordinates(int64_t count, const int64_t *positions, Shape s, int64_t base, int64_t *y) {
  for (PLC_EACH(i, count)) {
    int64_t at = positions[i];
    for (int d = s.n - 1; d >= 0; d--) {
      y[i * s.n + d] = at % s.size[d] + base;
      at /= s.size[d];
    }
  }
}
static PlStatus nonzero(const PlkCall *c) {
  const PlArray *x = c->in[0];
  int64_t *found, count;
  Shape s;
  PL_TRY(plc_nonzero(x, &found, &count));
  s.n = x->ndim;
  for (int d = 0; d < x->ndim; d++) s.size[d] = x->shape[d];
  if (count > c->out[0]->shape[0]) count = c->out[0]->shape[0];
  if (count && s.n)
    PLC_LAUNCH(coordinates, plc_grid(count, 1), PLC_BLOCK, 0, count, (const int64_t *)found, s, pl_attr_i(c->attrs, 0),
               (int64_t *)c->out[0]->data);
  plc_scratch_free(found);
  return PL_OK;
}
PLC_KERNEL(nonzero, nonzero)
