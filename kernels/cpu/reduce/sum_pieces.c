/* SPDX-License-Identifier: MIT
 * Sums over leading dims and over everything, some rows at a time, with the bits of reduce_run.c: its blocks are the
 * grains here, its loops go on where the last piece ended. */
#include <string.h>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/reduce/reduce_run.h"
#include "kernels/program.h"
#include "kernels/reduce.h"

enum { CHUNK = PLK_SUM_CHUNK }; /* elements that sum_f32 takes at a time */

enum { ALL, COLUMNS }; /* notes */
static int64_t grains(const PlkPieces *p) { return (p->rows * p->cols + p->grain - 1) / p->grain; }

static bool plan(const PlkCall *c, PlkPieces *p) {
  const PlArray *x = c->in[0], *y = c->out[0];
  if (x->dtype != y->dtype || (x->dtype != PL_F32 && x->dtype != PL_F64)) return false;
  size_t item = pl_dtype_size((PlDtype)x->dtype);
  if (y->numel == 1) {
    p->grain = plk_reduce_block(1);
    p->unit = 1;
    p->note = ALL;
    p->local = sizeof(double) + sizeof(int64_t) + CHUNK * item;
    p->shared = (size_t)grains(p) * sizeof(double);
    return true;
  }
  if (y->numel != p->cols) return false;
  p->grain = plk_reduce_block(p->cols) * p->cols;
  p->unit = 8;
  p->note = COLUMNS;
  p->local = (size_t)p->cols * (sizeof(double) + item);
  p->shared = (size_t)(grains(p) * p->cols) * sizeof(double);
  return true;
}

/* ---- everything --------------------------------------------------------------------------------------------- */

/* What of a grain was added, and elements that do not fill a chunk yet. */
typedef struct Total {
  double sum;
  int64_t held;
  char stage[];
} Total;

static double add_chunk(const PlArray *x, const void *v, int64_t n) {
  const PlkReduceLoops *l = plk_float_sums_loops();
  return x->dtype == PL_F32 ? l->sum_f32(v, n) : l->sum_f64(v, n);
}

static void total(const PlArray *x, const PlkPieces *p, int64_t at, double *shared, Total *t) {
  size_t item = pl_dtype_size((PlDtype)x->dtype);
  int64_t all = p->rows * p->cols;
  const char *v = x->data;
  for (int64_t left = x->numel, n; left > 0; left -= n, at += n, v += (size_t)n * item) {
    int64_t in = at % p->grain, end = all - (at - in) < p->grain ? all - (at - in) : p->grain;
    if (in == 0) *t = (Total){.sum = 0};
    int64_t stop = (in / CHUNK + 1) * CHUNK; /* of the chunk */
    if (stop > end) stop = end;
    n = stop - in < left ? stop - in : left;
    if (t->held == 0 && in + n == stop) {
      t->sum += add_chunk(x, v, n);
    } else {
      memcpy(t->stage + (size_t)t->held * item, v, (size_t)n * item);
      t->held += n;
      if (in + n == stop) {
        t->sum += add_chunk(x, t->stage, t->held);
        t->held = 0;
      }
    }
    if (in + n == end) shared[at / p->grain] = t->sum;
  }
}

/* ---- columns ------------------------------------------------------------------------------------------------ */

/* Up to 256 rows are added in T, then in double, per column. local: the doubles, then the Ts. */
static void column_rows(const PlArray *x, const char *v, const PlkPieces *p, int64_t n, double *acc) {
  const PlkReduceLoops *l = plk_float_sums_loops();
  for (int64_t c = 0; c < p->cols; c += PLK_COLS) {
    int64_t k = p->cols - c < PLK_COLS ? p->cols - c : PLK_COLS;
    if (x->dtype == PL_F32) l->colpart_f32((const float *)(const void *)v + c, p->cols, n, k, (float *)(acc + p->cols) + c);
    else l->colpart_f64((const double *)(const void *)v + c, p->cols, n, k, acc + p->cols + c);
  }
}

static void column_flush(const PlArray *x, const PlkPieces *p, double *acc) {
  if (x->dtype == PL_F32) {
    float *part = (float *)(acc + p->cols);
    for (int64_t c = 0; c < p->cols; c++) acc[c] += (double)part[c], part[c] = 0;
  } else {
    double *part = acc + p->cols;
    for (int64_t c = 0; c < p->cols; c++) acc[c] += part[c], part[c] = 0;
  }
}

static void column_sums(const PlArray *x, const PlkPieces *p, int64_t at, double *shared, double *acc) {
  size_t item = pl_dtype_size((PlDtype)x->dtype);
  int64_t row = at / p->cols, block = p->grain / p->cols, rows = x->numel / p->cols;
  const char *v = x->data;
  for (int64_t n; rows > 0; rows -= n, row += n, v += (size_t)(n * p->cols) * item) {
    int64_t in = row % block, end = p->rows - (row - in) < block ? p->rows - (row - in) : block;
    if (in == 0) memset(acc, 0, p->local);
    int64_t stop = (in / PLK_COLSUM_ROWS + 1) * PLK_COLSUM_ROWS;
    if (stop > end) stop = end;
    n = stop - in < rows ? stop - in : rows;
    column_rows(x, v, p, n, acc);
    if (in + n == stop) column_flush(x, p, acc);
    if (in + n == end) memcpy(shared + row / block * p->cols, acc, (size_t)p->cols * sizeof *acc);
  }
}

static PlStatus piece(const PlkCall *c, const PlkPieces *p, int64_t at, void *shared, void *local) {
  if (p->note == COLUMNS) column_sums(c->in[0], p, at, shared, local);
  else total(c->in[0], p, at, shared, local);
  return PL_OK;
}

static double tree(const double *part, int64_t step, int64_t n) {
  if (n == 1) return *part;
  return tree(part, step, n / 2) + tree(part + n / 2 * step, step, n - n / 2);
}

static PlStatus end(const PlkCall *c, const PlkPieces *p, void *shared) {
  bool each = p->note == COLUMNS, mean = c->code == PLK_R_MEAN;
  int64_t n = each ? p->cols : 1;
  const double *part = shared;
  for (int64_t i = 0; i < n; i++) {
    double v = tree(part + i, n, grains(p));
    if (mean) v /= (double)(each ? p->rows : p->rows * p->cols);
    plk_store(PLK_CF64, &v, 1, c->out[0]->data, c->out[0]->dtype, i, 1, 1, 1);
  }
  return PL_OK;
}

const PlkPiecewise plk_cpu_sum_pieces = {plan, piece, end};
