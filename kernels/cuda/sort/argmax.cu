/* SPDX-License-Identifier: MIT
 * Where the largest or smallest value of a row is: argmax, argmin, max and min with indices. The first of equals wins;
 * NaN beats everything. Rows are read by a thread, a warp or a block, long ones by several blocks. Also the moves along a
 * dim that gradients of index results are made of. */
#include "kernels/cuda/any_dtype.h"
#include "kernels/sort.h"

namespace {

struct Best {
  uint64_t key;
  int64_t at; /* < 0: nothing yet */
};
PLC_DEV Best better(Best a, Best b) {
  if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
  return b.key > a.key || (b.key == a.key && b.at < a.at) ? b : a;
}

struct Rows {
  plc_rows r;
  int64_t parts, chunk, base;
  int width, dtype; /* threads of a row */
  bool min;
};

PLC_DEV void finish(const Rows &k, int64_t row, const void *x, Best b, void *y, int64_t *index) {
  if (y) plc_move(y, row, x, (row / k.r.inner * k.r.n + b.at) * k.r.inner + row % k.r.inner, plc_size(k.dtype));
  if (index) index[row] = b.at + k.base;
}

/* part: what a part found, where there are several; else y and index. */
__global__ void find(Rows k, const void *x, Best *part, void *y, int64_t *index) {
  __shared__ uint64_t keys[8];
  __shared__ int64_t ats[8];
  const int t = (int)threadIdx.x, each = PLC_BLOCK / k.width;
  const int64_t slot = (int64_t)blockIdx.x * each + t / k.width, row = slot / k.parts, p = slot % k.parts;
  const bool mine = row < k.r.outer * k.r.inner;
  Best best = {0, -1};
  if (mine) {
    const int64_t first = row / k.r.inner * k.r.n * k.r.inner + row % k.r.inner;
    const int64_t end = (p + 1) * k.chunk < k.r.n ? (p + 1) * k.chunk : k.r.n;
    for (int64_t i = p * k.chunk + t % k.width; i < end; i += k.width) {
      const int64_t at = first + i * k.r.inner;
      const uint64_t key = k.min ? plc_key_down(x, k.dtype, at) : plc_key(x, k.dtype, at);
      if (best.at < 0 || key > best.key) best = Best{key, i};
    }
  }
  for (int d = 16; d > 0 && k.width > 1; d >>= 1)
    best = better(best, Best{__shfl_xor_sync(0xffffffffu, best.key, d), __shfl_xor_sync(0xffffffffu, best.at, d)});
  if (k.width == PLC_BLOCK) {
    if (t % 32 == 0) {
      keys[t / 32] = best.key;
      ats[t / 32] = best.at;
    }
    __syncthreads();
    for (int w = 0; w < PLC_BLOCK / 32; w++) best = better(best, Best{keys[w], ats[w]});
  }
  if (!mine || t % k.width != 0) return;
  if (part) part[slot] = best;
  else finish(k, row, x, best, y, index);
}

__global__ void join(Rows k, const void *x, const Best *part, void *y, int64_t *index) {
  for (PLC_EACH(row, k.r.outer * k.r.inner)) {
    Best b = {0, -1};
    for (int64_t p = 0; p < k.parts; p++) b = better(b, part[row * k.parts + p]);
    finish(k, row, x, b, y, index);
  }
}

PlStatus extreme(const PlkCall *call, PlArray *values, PlArray *at) {
  const PlArray *x = call->in[0];
  const bool flat = !pl_attr_has(call->attrs, 0);
  Rows k = {plc_rows_of(x, flat ? -1 : pl_attr_i(call->attrs, 0)), 1, 0, pl_attr_i(call->attrs, 2), 1, (int)x->dtype, call->code != 0};
  const int64_t rows = k.r.outer * k.r.inner, n = k.r.n;
  if (rows == 0 || n == 0) return PL_OK;
  k.width = n < 16 || (k.r.inner > 1 && rows >= 16384) ? 1 : n <= 1024 && rows >= 64 ? 32 : PLC_BLOCK;
  if (k.width == PLC_BLOCK) {
    const int64_t want = 1024 / rows, most = n / 16384;
    k.parts = want < most ? want : most;
    if (k.parts < 1) k.parts = 1;
  }
  k.chunk = (n + k.parts - 1) / k.parts;
  void *y = values ? values->data : NULL, *part = NULL;
  int64_t *index = at ? (int64_t *)at->data : NULL;
  const int64_t each = PLC_BLOCK / k.width, blocks = (rows * k.parts + each - 1) / each;
  if (blocks > INT32_MAX) PL_FAIL(PL_ERR_UNSUPPORTED, "%s: %lld rows are too many", call->name, (long long)rows);
  if (k.parts > 1) PL_TRY(plc_scratch((size_t)(rows * k.parts) * sizeof(Best), &part));
  PLC_LAUNCH(find, (unsigned)blocks, PLC_BLOCK, 0, k, x->data, (Best *)part, y, index);
  if (!part) return PL_OK;
  PLC_LAUNCH(join, plc_grid(rows, 1), PLC_BLOCK, 0, k, x->data, (const Best *)part, y, index);
  plc_scratch_free(part);
  return PL_OK;
}
PlStatus argmax(const PlkCall *call) { return extreme(call, NULL, call->out[0]); }
PlStatus max_dim(const PlkCall *call) { return extreme(call, call->out[0], call->out[1]); }

/* ---- moves along a dim ------------------------------------------------------------------------------------------------ */

/* put: y[index] += x, y being zeros. Equal positions of a row are neighbours (cummax) or there are none (sorting, extremes):
 * the first of a run adds it up. Else y = x[index]. m: positions of a row. */
__global__ void moves(plc_rows w, int64_t m, int64_t base, bool put, const void *x, int from, const void *index, int itype, void *y, int to,
                      PlcFlag *flag, const char *name) {
  for (PLC_EACH(e, w.outer * m * w.inner)) {
    const int64_t in = e % w.inner, o = e / w.inner / m, v = plc_get_i(index, itype, e) - base;
    if (v < 0 || v >= w.n) {
      plc_fault(flag, PLC_FAULT_INDEX, name, v + base, w.n, (int)base);
      continue;
    }
    const int64_t at = (o * w.n + v) * w.inner + in;
    if (put) {
      const int64_t i = e / w.inner % m;
      if (i > 0 && plc_get_i(index, itype, e - w.inner) - base == v) continue;
      double sum = plc_get_f(x, from, e);
      for (int64_t j = 1; i + j < m && plc_get_i(index, itype, e + j * w.inner) - base == v; j++)
        sum += plc_get_f(x, from, e + j * w.inner);
      plc_put_f(y, to, at, sum);
    } else if (from == to) plc_move(y, e, x, at, plc_size(to));
    else plc_put_f(y, to, e, plc_get_f(x, from, at));
  }
}

PlStatus move(const PlkCall *call, const PlArray *wide, bool put) {
  const PlArray *x = call->in[0], *index = call->in[1];
  PlArray *y = call->out[0];
  const plc_rows r = plc_rows_of(wide, pl_attr_has(call->attrs, 0) ? pl_attr_i(call->attrs, 0) : -1);
  const int64_t rows = r.outer * r.inner;
  if (put && y->numel > 0) PLC_TRY(cudaMemsetAsync(y->data, 0, (size_t)y->numel * pl_dtype_size((PlDtype)y->dtype), plc_stream()));
  if (index->numel == 0 || rows == 0) return PL_OK;
  PLC_LAUNCH(moves, plc_grid(index->numel, 1), PLC_BLOCK, 0, r, index->numel / rows, pl_attr_i(call->attrs, 2), put, x->data, (int)x->dtype,
             index->data, (int)index->dtype, y->data, (int)y->dtype, plc_flag(), (const char *)call->name);
  return PL_OK;
}
PlStatus dim_put(const PlkCall *call) { return move(call, call->out[0], true); }
PlStatus dim_pick(const PlkCall *call) { return move(call, call->in[0], false); }

} // namespace

PLC_KERNEL(argmax, argmax)
PLC_KERNEL(max_dim, max_dim)
PLC_KERNEL(min_dim, max_dim)
PLC_KERNEL(dim_put, dim_put)
PLC_KERNEL(dim_pick, dim_pick)
