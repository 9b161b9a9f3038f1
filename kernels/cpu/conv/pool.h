/* SPDX-License-Identifier: MIT
 * A pooling call as its kernels see it: three spatial dims, planes that are independent of each other. pool.c has the
 * plain form of each; isa/pool.c one that takes whole rows. */
#ifndef PL_KERNELS_CPU_CONV_POOL_H
#define PL_KERNELS_CPU_CONV_POOL_H

#include "kernels/kernel.h"

typedef struct PlkPool {
  bool adaptive, include_pad;
  PlDtype dtype;
  int64_t planes, insize, outsize, divisor;                       /* divisor 0: the window's size */
  int64_t in[3], out[3], k[3], stride[3], pad[3], end[3], dil[3]; /* pad: before, end: behind */
  void *x, *y;                                                    /* or dx, dy */
  int64_t *index;
  const void *v; /* of max: a tangent of x, NULL: none … */
  void *t;       /* … and that of y */
} PlkPool;

/* One dim of a window: positions lo, lo + step … below hi, `count` of them; `full` counts padding too (but
 * not what is beyond it, where ceil_mode may reach). */
typedef struct PlkSpan {
  int64_t lo, hi, step, count, full;
} PlkSpan;

PlkSpan plk_pool_span(const PlkPool *p, int d, int64_t t);

/* One plane by rows: windows along a row first, each row once, then rows into windows. Only where plk_pool_by_rows says
 * so; room: plk_pool_room bytes; fresh: nothing has been in them, else a plane of the same call. */
typedef struct PlkPoolLoops {
  void (*max_f32)(const PlkPool *p, float *y, const float *x, int64_t *index, void *room, bool fresh);
  void (*max_f64)(const PlkPool *p, double *y, const double *x, int64_t *index, void *room, bool fresh);
  void (*avg_f32)(const PlkPool *p, float *y, const float *x, void *room, bool fresh);
  void (*avg_f64)(const PlkPool *p, double *y, const double *x, void *room, bool fresh);
  void (*avg_back_f32)(const PlkPool *p, float *dx, const float *dy, void *room, bool fresh);
  void (*avg_back_f64)(const PlkPool *p, double *dx, const double *dy, void *room, bool fresh);
  /* y and its tangent t, of a plane of windows as plk_pool_two_by_two says */
  void (*pairs_f32)(const PlkPool *p, float *y, const float *x, float *t, const float *v);
} PlkPoolLoops;

/* Rows of a plane whose windows are kept; columns of one of a row's `stride` phases, and those that are allocated. */
static inline int64_t plk_pool_slots(const PlkPool *p) {
  const int64_t reach = (p->k[1] - 1) * p->dil[1] + 1, rows = p->in[0] * p->in[1];
  const int64_t n = p->in[0] > 1 ? 64 : reach < 8 ? 8 : reach;
  return n < rows ? n : rows;
}
enum { PLK_POOL_STEP = 16 }; /* columns that loops take at a time */
static inline int64_t plk_pool_wide(const PlkPool *p) { return (p->out[2] + PLK_POOL_STEP - 1) & -(int64_t)PLK_POOL_STEP; }
static inline int64_t plk_pool_phase(const PlkPool *p) {
  const int64_t more = ((p->k[2] < 3 ? 2 : p->k[2] - 1) * p->dil[2] + p->stride[2]) / p->stride[2];
  return plk_pool_wide(p) + ((more + PLK_POOL_STEP - 1) & -(int64_t)PLK_POOL_STEP);
}
/* Windows of 2×2 side by side in one plane, at least four of them in a row: the commonest by far. */
static inline bool plk_pool_two_by_two(const PlkPool *p) {
  bool yes = p->in[0] == 1 && p->k[0] == 1 && p->out[0] == 1 && p->out[2] >= 4 && !p->adaptive;
  for (int i = 1; i < 3; i++)
    yes = yes && p->k[i] == 2 && p->stride[i] == 2 && p->pad[i] == 0 && p->dil[i] == 1 && 2 * p->out[i] <= p->in[i];
  return yes;
}
size_t plk_pool_room(const PlkPool *p);
bool plk_pool_by_rows(const PlkPool *p);

#endif
