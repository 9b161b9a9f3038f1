/* SPDX-License-Identifier: MIT
 * Inner loops of reductions, softmax and normalization: isa/reduce/reduce.c and isa/norm.c are compiled once per
 * ISA level and export one table each. Sums take fixed lanes and a fixed tree: the same bits at every level
 * but where a fused multiply-add exists (exp only). Sums come back as double. */
#ifndef PL_KERNELS_CPU_LOOPS_H
#define PL_KERNELS_CPU_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/base.h"

/* n elements are reduced to each of m results (isa/reduce/reduce_body.h): element k of result r is x[r * ld + k] in rows and
 * x[k * ld + r] in columns, of which there are at most PLK_COLS; "across" it is the other way round, with the bits that the
 * same array gives when it lies as rows or columns do. Results of rows are written, those of columns added to `out`, or
 * compared with it. */
typedef enum PlkForm { PLK_ROWS, PLK_COLUMNS, PLK_ROWS_ACROSS, PLK_COLUMNS_ACROSS, PLK_FORMS } PlkForm;
typedef enum PlkCore { PLK_CORE_SUM, PLK_CORE_MAX, PLK_CORE_MIN, PLK_CORE_PROD } PlkCore;
typedef void (*PlkReduceLoop)(const void *x, int64_t ld, int64_t n, int64_t m, double *out);

typedef struct PlkReduceLoops {
  /* What results start from and end with. divide_floats: `v` and `by` are floats, and so will the quotients be. */
  void (*fill)(double *to, double v, int64_t n);
  void (*divide)(double *v, double by, int64_t n);
  void (*divide_floats)(double *v, double by, int64_t n);
  void (*root)(double *v, int64_t n);
  void (*to_f32)(const double *v, float *to, int64_t n);
  double (*sum_f32)(const float *x, int64_t n);
  double (*sum_f64)(const double *x, int64_t n);
  /* NaN wins; -inf or inf for n = 0. */
  float (*max_f32)(const float *x, int64_t n);
  float (*min_f32)(const float *x, int64_t n);
  double (*max_f64)(const double *x, int64_t n);
  double (*min_f64)(const double *x, int64_t n);
  /* The first place of n >= 1 where x is y, which is no NaN and is there. */
  int64_t (*place_f32)(const float *x, float y, int64_t n);
  int64_t (*place_f64)(const double *x, double y, int64_t n);
  /* part[c] += x[r * ld + c], as colsum adds up to PLK_COLSUM_ROWS rows; all but the last piece of them a multiple of 8. */
  void (*colpart_f32)(const float *x, int64_t ld, int64_t rows, int64_t cols, float *part);
  void (*colpart_f64)(const double *x, int64_t ld, int64_t rows, int64_t cols, double *part);
  PlkReduceLoop plain[PL_BF16 + 1][PLK_CORE_PROD][PLK_FORMS]; /* of f32, f64, f16 and bf16; NULL: none at this level */
  /* Tangents of rows: that of the product of x, v being that of x; the sum of v where x = y, or where both are NaN if `nan`,
   * and at how many places that is. */
  double (*prod_tangent_f32)(const float *x, const float *v, int64_t n), (*prod_tangent_f64)(const double *x, const double *v, int64_t n);
  int64_t (*first_f32)(const float *x, float y, bool nan, int64_t n); /* such places are from here on, and near; n: perhaps none */
  int64_t (*first_f64)(const double *x, double y, bool nan, int64_t n);
  double (*hits_f32)(const float *x, const float *v, float y, bool nan, int64_t n, double *count);
  double (*hits_f64)(const double *x, const double *v, double y, bool nan, int64_t n, double *count);
} PlkReduceLoops;

enum {
  PLK_COLS = 512,        /* columns that are reduced together */
  PLK_SUM_CHUNK = 4096,  /* elements that sum_f32 and sum_f64 add in lanes before they go on in double */
  PLK_COLSUM_ROWS = 256, /* the same for rows of colsum */
  PLK_SHORT_EXPS = 64
};

/* Mapped elements joined in double (isa/reduce/reduce_map.c), with the outputs' values c (NULL: none): of rows that are ld apart, or
 * of columns, into acc. */
typedef struct PlkMapLoop { /* by dtype: f32, f64, f16, bf16 */
  void (*row[PL_BF16 + 1])(const void *x, int64_t ld, int64_t n, int64_t rows, const double *c, double *out);
  void (*col[PL_BF16 + 1])(const void *x, int64_t ld, int64_t rows, int64_t cols, const double *c, double *acc);
  /* the same columns along rows, element k of output r at x[r * ld + k]; NULL: there are none at this level */
  void (*across[PL_BF16 + 1])(const void *x, int64_t ld, int64_t rows, int64_t cols, const double *c, double *acc);
} PlkMapLoop;

typedef struct PlkMapLoops {
  PlkMapLoop square, diff, sqdiff, abs, prod; /* sums of x^2, x - c, (x - c)^2, |x|; the product */
  PlkMapLoop exp;                             /* sums of exp(x - c): columns of f32 and f64, rows below PLK_SHORT_EXPS but of f64 */
} PlkMapLoops;

/* Reductions with the tangents of their results, w being that of x (isa/reduce/reduce_tangent.c). Values are those of PlkMapLoops, to the bit;
 * tangents are sums of w 2x / 2, w sign(x), w (x - c), w exp(x - c), and what the product changes by. */
typedef enum PlkPaired { PLK_PAIRED_SQUARE, PLK_PAIRED_ABS, PLK_PAIRED_SQDIFF, PLK_PAIRED_PROD, PLK_PAIRED_EXP, PLK_PAIRED } PlkPaired;
#define PLK_REDUCE_TANGENTS(T)                                                                                            \
  struct {                                                                                                                \
    double (*row[PLK_PAIRED])(const T *x, const T *w, int64_t n, double c, double *tangent);                              \
    void (*col[PLK_PAIRED])(const T *x, const T *w, int64_t ld, int64_t rows, int64_t cols, const double *c, double *acc, \
                            double *tangent);                                                                             \
    double (*dot)(const T *x, const T *w, int64_t n); /* sum x w */                                                       \
    /* by column: sum w where x = y, and how often that is; added up */                                                   \
    void (*hits)(const T *x, const T *w, int64_t ld, int64_t rows, int64_t cols, const T *y, double *sum, double *count); \
  }
typedef struct PlkReduceTangents {
  PLK_REDUCE_TANGENTS(float) f32;
  PLK_REDUCE_TANGENTS(double) f64;
} PlkReduceTangents;

/* Softmax of rows of n, which follow each other. */
#define PLK_SOFTMAX_LOOPS(T, sfx)                                                                   \
  void (*softmax_##sfx)(const T *x, T *y, int64_t n, int64_t rows);                                 \
  void (*log_softmax_##sfx)(const T *x, T *y, int64_t n, int64_t rows);                             \
  void (*softmax_bwd_##sfx)(const T *dy, const T *y, T *dx, int64_t n, int64_t rows);               \
  void (*log_softmax_bwd_##sfx)(const T *dy, const T *y, T *dx, int64_t n, int64_t rows);           \
  /* max x and sum exp(x - max), of each row; max of infinite rows counts as 0. */                  \
  void (*lse_##sfx)(const T *x, int64_t n, int64_t rows, T *max, double *sum);                      \
  /* of one row: and sum (v - c) exp(x - max) with it */                                            \
  void (*lse_dual_##sfx)(const T *x, const T *v, T c, int64_t n, T *max, double *sum, double *dot); \
  /* y = a exp(x - m) */                                                                            \
  void (*exp_##sfx)(const T *x, T m, T a, T *y, int64_t n);                                         \
  /* y of x, and t, what y changes by where x does by v */                                          \
  void (*softmax_dual_##sfx)(const T *x, const T *v, T *y, T *t, int64_t n);                        \
  void (*log_softmax_dual_##sfx)(const T *x, const T *v, T *y, T *t, int64_t n);                    \
  double (*sum_##sfx)(const T *x, int64_t n);

typedef struct PlkSoftmaxLoops {
  PLK_SOFTMAX_LOOPS(float, f32)
  PLK_SOFTMAX_LOOPS(double, f64)
  void (*log)(double *v, int64_t n); /* in place, of sums of floats */
} PlkSoftmaxLoops;

/* One normalized row. w, b may be NULL (ones, zeros); so may dx, dw, db (not wanted; dw and db add up). */
#define PLK_NORM_LOOPS(T, sfx)                                                                                              \
  /* mean and the sum of squared differences; with center false 0 and the sum of squares */                                 \
  void (*moments_##sfx)(const T *x, int64_t n, bool center, double *mean, double *m2);                                      \
  void (*norm_##sfx)(const T *x, const T *w, const T *b, T *y, int64_t n, T mean, T rstd);                                  \
  void (*norm_bwd_##sfx)(const T *dy, const T *x, const T *w, T mean, T rstd, bool center, T *dx, T *dw, T *db, int64_t n); \
  /* s1 = sum dy, s2 = sum dy (x - mean) */                                                                                 \
  void (*dots_##sfx)(const T *dy, const T *x, T mean, int64_t n, double *s1, double *s2);                                   \
  /* y = a (x - mean) + c;  dx = a dy + b (x - mean) + c */                                                                 \
  void (*affine_##sfx)(const T *x, T mean, T a, T c, T *y, int64_t n);                                                      \
  void (*affine2_##sfx)(const T *dy, const T *x, T mean, T a, T b, T c, T *dx, int64_t n);

typedef struct PlkNormLoops {
  PLK_NORM_LOOPS(float, f32)
  PLK_NORM_LOOPS(double, f64)
} PlkNormLoops;

/* One channel of x[N,C,S]: `runs` runs of n numbers, `step` apart. dx and dy, or y and x, may be the same. */
#define PLK_CHANNEL_LOOPS(T, sfx)                                                                                     \
  double (*sum_##sfx)(const T *x, int64_t runs, int64_t step, int64_t n);                                             \
  double (*sqdiff_##sfx)(const T *x, T c, int64_t runs, int64_t step, int64_t n); /* sum (x - c)^2 */                 \
  /* s1 = sum dy, s2 = sum dy (x - mean) */                                                                           \
  void (*dots_##sfx)(const T *dy, const T *x, T mean, int64_t runs, int64_t step, int64_t n, double *s1, double *s2); \
  /* y = a (x - mean) + c;  dx = a dy + b (x - mean) + c */                                                           \
  void (*affine_##sfx)(const T *x, T mean, T a, T c, T *y, int64_t runs, int64_t step, int64_t n);                    \
  void (*affine2_##sfx)(const T *dy, const T *x, T mean, T a, T b, T c, T *dx, int64_t runs, int64_t step, int64_t n);

typedef struct PlkChannelLoops {
  PLK_CHANNEL_LOOPS(float, f32)
  PLK_CHANNEL_LOOPS(double, f64)
} PlkChannelLoops;

/* Pointwise losses by code (kernels/loss.h): y = loss(x, t). pos: weights of positives, NULL: ones; p: beta, delta, or
 * whether t are logarithms (isa/loss.c). */
typedef struct PlkLossLoops {
  void (*loop[8])(const double *x, const double *t, const double *pos, double p, double *y, int64_t n);
  /* where no input is f64: to 1e-9 of y; NULL: as loop */
  void (*low[8])(const double *x, const double *t, const double *pos, double p, double *y, int64_t n);
  double (*sum_f32[8])(const float *x, const float *t, double p, int64_t n); /* the sum of y; NULL: none such */
  /* y = v times the slope of the loss in x; and both sums, that of y as by sum_f32: what forward mode asks of losses of x - t */
  void (*slope[8])(const double *x, const double *t, const double *v, double p, double *y, int64_t n);
  double (*dual_f32[8])(const float *x, const float *t, const float *v, double p, int64_t n, double *dot);
} PlkLossLoops;

/* Columns of n rows that are ld apart, at most PLK_SOFT_COLS of them (isa/softmax_columns.c). */
enum { PLK_SOFT_COLS = 256 };
#define PLK_SOFTMAX_COLUMNS(T, sfx)                                                                           \
  /* as lse of a row */                                                                                       \
  void (*lse_##sfx)(const T *x, int64_t ld, int64_t n, int64_t cols, T *max, double *sum);                    \
  void (*forward_##sfx)(const T *x, T *y, int64_t ld, int64_t n, int64_t cols, bool log);                     \
  void (*backward_##sfx)(const T *dy, const T *y, T *dx, int64_t ld, int64_t n, int64_t cols, bool log);      \
  /* y = a e, e = exp(x - m), m and a by column, and the sum of those e that are up to 1/2 */                 \
  void (*exp_##sfx)(const T *x, T *y, int64_t ld, int64_t n, int64_t cols, const T *m, const T *a, T *small); \
  void (*dual_##sfx)(const T *x, const T *v, T *y, T *t, int64_t ld, int64_t n, int64_t cols, bool log);

typedef struct PlkSoftmaxColumns {
  PLK_SOFTMAX_COLUMNS(float, f32)
  PLK_SOFTMAX_COLUMNS(double, f64)
  /* lse = max + log(sum) */
  void (*join_f32)(const float *max, const double *sum, int64_t cols, double *lse);
  void (*join_f64)(const double *max, const double *sum, int64_t cols, double *lse);
} PlkSoftmaxColumns;

/* The same columns of batch norm: n rows, ld apart (isa/batch_norm_columns.c); m, a, b, add by column. */
#define PLK_NORM_COLUMNS(T, sfx)                                                                                                        \
  void (*sum_##sfx)(const T *x, int64_t ld, int64_t n, int64_t cols, double *sum);                                                      \
  /* sum (x - m)^2 */                                                                                                                   \
  void (*sqdiff_##sfx)(const T *x, int64_t ld, int64_t n, int64_t cols, const T *m, double *sum);                                       \
  /* s1 = sum dy, s2 = sum dy (x - m) */                                                                                                \
  void (*dots_##sfx)(const T *dy, const T *x, int64_t ld, int64_t n, int64_t cols, const T *m, double *s1, double *s2);                 \
  /* y = a (x - m) + add;  dx = a dy + b (x - m) + add */                                                                               \
  void (*affine_##sfx)(const T *x, int64_t ld, int64_t n, int64_t cols, const T *m, const T *a, const T *add, T *y);                    \
  void (*affine2_##sfx)(const T *dy, const T *x, int64_t ld, int64_t n, int64_t cols, const T *m, const T *a, const T *b, const T *add, \
                        T *dx);

typedef struct PlkNormColumns {
  PLK_NORM_COLUMNS(float, f32)
  PLK_NORM_COLUMNS(double, f64)
} PlkNormColumns;

/* Of PlkReduceLoops the sums of rows alone: a table of its own, so that a program which needs no more links no more. */
typedef struct PlkRowSums {
  __typeof__(((PlkReduceLoops *)0)->plain[0][0][0]) f32, f64;
} PlkRowSums;

const PlkSoftmaxLoops *plk_softmax_loops(void);
const PlkSoftmaxColumns *plk_softmax_columns_loops(void);
const PlkReduceLoops *plk_reduce_loops(void);
const PlkMapLoops *plk_map_loops(void);
const PlkNormLoops *plk_norm_loops(void);

#endif
