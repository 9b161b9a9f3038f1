/* SPDX-License-Identifier: MIT
 * Between the parts of attention: attention.c (what a call is), attention_body.h (rows of scores at a time, once in
 * float and once in double), attention_bf16.c (blocks of queries through oneDNN), and the inner loops, which are
 * compiled once per ISA level (isa/attention.c). */
#ifndef PL_KERNELS_CPU_ATTENTION_ATTENTION_H
#define PL_KERNELS_CPU_ATTENTION_ATTENTION_H

#include "kernels/kernel.h"

/* Rows of one small product; numbers to which rows are padded. */
enum { PLK_AT_ROWS = 4, PLK_AT_LANES = 16 };

#define PLK_ATTENTION_LOOPS(T)                                                                                        \
  /* c[r][0..w) += sum over k < K of a[r * ar + k * ak] b[k][0..w), r < 4; w is a multiple of 16. */                  \
  void (*mm4)(const T *a, int64_t ar, int64_t ak, const T *b, int64_t ldb, int64_t K, T *c, int64_t ldc, int64_t w);  \
  /* c[0..w) += sum over k < K of a[k] b[k][0..w); w is a multiple of 16. */                                          \
  void (*mm1)(const T *a, const T *b, int64_t ldb, int64_t K, T *c, int64_t w);                                       \
  /* s[i] <- q[0..E) k[i][0..E) for i < n */                                                                          \
  void (*dots)(const T *q, const T *k, int64_t ks, int64_t E, int64_t n, T *s);                                       \
  /* s[0..n) <- exp(scale s + add - max), zeros up to w; returns the maximum, *sum. add may be NULL; a row that is  \
   * hidden throughout (max -inf) becomes zeros with sum 1. */ \
  T (*softmax)(T * s, const T *add, int64_t n, int64_t w, T scale, T *sum);                                           \
  /* s[0..n) <- exp(scale s + add - top) / sum, zeros up to w */                                                      \
  void (*again)(T * s, const T *add, int64_t n, int64_t w, T scale, T top, T sum);                                    \
  /* dp <- p (dp - sum p dp) scale */                                                                                 \
  void (*slope)(const T *p, T *dp, int64_t w, T scale);                                                               \
  /* x[j] <- 0 where word[j] < cut, else x[j] keep */                                                                 \
  void (*drop)(T * x, const uint32_t *word, int64_t n, uint64_t cut, T keep);

typedef struct PlkAttentionF32 {
  PLK_ATTENTION_LOOPS(float)
} PlkAttentionF32;
typedef struct PlkAttentionF64 {
  PLK_ATTENTION_LOOPS(double)
} PlkAttentionF64;
typedef struct PlkAttentionLoops {
  PlkAttentionF32 f32;
  PlkAttentionF64 f64;
} PlkAttentionLoops;

/* Matrices of a batch [B][n][c] with any strides (in elements). */
typedef struct PlkAtMat {
  const char *data; /* NULL: absent */
  int dtype, nbatch;
  int64_t n, c, rs, cs;                       /* rows, columns and their strides */
  int64_t size[PL_MAX_DIM], step[PL_MAX_DIM]; /* batch dims, outermost first */
} PlkAtMat;

typedef struct PlkAtCall {
  const PlkAttentionLoops *loops;
  PlkAtMat q, k, v, dy, mask, sums_in; /* dy, sums_in: backward */
  void *y, *sums, *dq, *dk, *dv;       /* dense outputs; NULL: not wanted */
  int dtype;                           /* of q, k, v and their gradients */
  int64_t B, L, S, E, D;
  double scale;
  bool causal;
  uint64_t cut; /* dropout: words below it drop; 0: none */
  double keep;  /* what the others are multiplied with */
  PlkRng rng;
  int64_t parts, part; /* backward: parts of `part` queries a batch, whose dk and dv are added */
  void *partial;       /* backward with several parts: [B][parts][S (E + D)] */
} PlkAtCall;

int64_t plk_at_offset(const PlkAtMat *m, int64_t batch); /* in elements */
/* How many keys query i sees. */
static inline int64_t plk_at_seen(const PlkAtCall *c, int64_t i) { return c->causal && i + 1 < c->S ? i + 1 : c->S; }
/* Random words of the row of query i of batch b; room for S + 3 of them. */
void plk_at_words(const PlkAtCall *c, int64_t b, int64_t i, int64_t n, uint32_t *out);
/* dst[j] <- row i of batch b of a matrix, in float or double. A bool row becomes 0 where true, -inf where false. */
void plk_at_row_f32(const PlkAtMat *m, int64_t at, int64_t i, int64_t n, float *dst);
void plk_at_row_f64(const PlkAtMat *m, int64_t at, int64_t i, int64_t n, double *dst);
/* n dense elements of dtype at element `at` of p. */
void plk_at_put_f32(void *p, int dtype, int64_t at, const float *src, int64_t n);
void plk_at_put_f64(void *p, int dtype, int64_t at, const double *src, int64_t n);

/* The three ways; forward over tasks of PLK_AT_CHUNK queries, backward over parts. */
enum { PLK_AT_CHUNK = 128 };
PlStatus plk_at_forward_f32(const PlkAtCall *c, int64_t b, int64_t from, int64_t to);
PlStatus plk_at_forward_f64(const PlkAtCall *c, int64_t b, int64_t from, int64_t to);
PlStatus plk_at_backward_f32(const PlkAtCall *c, int64_t b, int64_t part);
PlStatus plk_at_backward_f64(const PlkAtCall *c, int64_t b, int64_t part);
/* bf16 of some size, by oneDNN: whether it applies, by shape and layout alone; then the same two. */
bool plk_at_bf16(const PlkAtCall *c);
PlStatus plk_at_forward_bf16(const PlkAtCall *c, int64_t b, int64_t from, int64_t to);
PlStatus plk_at_backward_bf16(const PlkAtCall *c, int64_t b, int64_t part);

#endif
