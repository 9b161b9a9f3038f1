/* SPDX-License-Identifier: MIT
 * The one door to oneDNN (v2.6 and v3). The library is opened on first use, not at
 * start-up: loading it costs milliseconds and megabytes that scripts without large
 * matrices need not pay. Everything here runs on the calling thread alone; callers cut
 * the work (docs/design/determinism.md). Without PLK_HAVE_ONEDNN, or where the library cannot be
 * opened, plk_onednn_ready() is false and the others must not be called. */
#ifndef PL_KERNELS_CPU_ONEDNN_ONEDNN_H
#define PL_KERNELS_CPU_ONEDNN_ONEDNN_H

#include "kernels/kernel.h"

/* "oneDNN 2.6.3" as compiled against, or NULL without it; does not open the library. */
const char *plk_onednn_version(void);
/* Opens the library if need be. */
bool plk_onednn_ready(void);

/* C = alpha * op(A) op(B) + beta * C, all row-major. */
PlStatus plk_onednn_sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda, const float *b,
                          int64_t ldb, float beta, float *c, int64_t ldc);

/* ---- convolution --------------------------------------------------------------------------------------- */

enum { PLK_CONV_FWD, PLK_CONV_BWD_INPUT, PLK_CONV_BWD_WEIGHT };
enum { PLK_CONV_X, PLK_CONV_W, PLK_CONV_Y };

/* One convolution of arrays x[n, g*c, in…], w[g*o, c, k…], y[n, g*o, out…], in any of
 * three directions. Spatial dims are dense; the strides of the outer dims are given, so
 * that a slice of a tensor can be named. Compared as bytes: zero it before filling it in.
 */
typedef struct PlkConvKey {
  int64_t kind, nd, has_bias;
  int64_t bf16;   /* x, w, y and bias are bf16, but for the weight's gradient; else all is f32 */
  int64_t common; /* which of x and y other plans read as well, all of its channels; -1: neither */
  int64_t n, g, c, o;
  int64_t in[3], k[3], out[3], stride[3], pad[3], dil[3];
  int64_t xn, wo, yn;     /* elements between images of x, between output channels of w, images of y */
  int64_t xblock, yblock; /* x and y as [n, channels / b, …, b], two spatial dims; 0: plain */
} PlkConvKey;

typedef struct PlkConvPlan PlkConvPlan;

/* Borrows a compiled plan from the cache; *out is NULL where the library has no fast form
 * of it. Give it back with plk_onednn_conv_put. A plan may run in several threads at
 * once. */
PlStatus plk_onednn_conv_get(const PlkConvKey *key, PlkConvPlan **out);
void plk_onednn_conv_put(PlkConvPlan *plan);
/* Bytes of the blocked form of PLK_CONV_X/W/Y; 0 where it is the plain layout itself. */
size_t plk_onednn_conv_bytes(const PlkConvPlan *plan, int which);
size_t plk_onednn_conv_scratch(const PlkConvPlan *plan);
/* Of the common tensor there is a reorder of single images, each of so many bytes in blocked form; 0 where there
 * is none. */
size_t plk_onednn_conv_image_bytes(const PlkConvPlan *plan);
PlStatus plk_onednn_conv_reorder_image(const PlkConvPlan *plan, void *plain, void *blocked);
/* Whether two plans read the same blocked images, or the same blocked weights. */
bool plk_onednn_conv_same_images(const PlkConvPlan *p, const PlkConvPlan *q);
bool plk_onednn_conv_same_weights(const PlkConvPlan *p, const PlkConvPlan *q);
/* Plain to blocked for what the plan reads, blocked to plain for what it writes. */
PlStatus plk_onednn_conv_reorder(const PlkConvPlan *plan, int which, void *plain, void *blocked);
/* x, w, y in the plan's forms; bias NULL unless has_bias; scratch of the size named
 * above. */
PlStatus plk_onednn_conv_run(const PlkConvPlan *plan, void *x, void *w, void *y, void *bias, void *scratch);

#endif
