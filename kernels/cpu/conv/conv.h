/* SPDX-License-Identifier: MIT
 * Convolution inside the CPU kernels: one description for the three directions and the
 * ways of computing them (conv_winograd.c, conv_onednn.c, conv_gemm.c, conv_direct.c). Entry points:
 * kernels/conv.h. */
#ifndef PL_KERNELS_CPU_CONV_CONV_H
#define PL_KERNELS_CPU_CONV_CONV_H

#include "kernels/cpu/onednn/onednn.h"

/* Spatial lists always have three entries: absent leading dims are of size 1 with
 * kernel 1. */
typedef struct PlkConv {
  int kind, nd; /* PLK_CONV_FWD … ; the true number of spatial dims */
  PlDtype dtype;
  int64_t n, g, c, o; /* images, groups, channels of one group */
  int64_t in[3], k[3], out[3], stride[3], pad[3], dil[3];
  int64_t insize, ksize, outsize; /* products of in, k, out */
  const void *bias;               /* of y, or of x where that is what is computed, in halves; NULL without */
  void *x, *w, *y;                /* the one that `kind` writes is the output */
  const float *addend;            /* forward, f32: y's elements, added to it; NULL without */
  bool relu;                      /* … then negative ones become 0 */
  struct PlkKept *kept;           /* forward: for forms of w; NULL: it may be another one next time */
  int64_t xblock, yblock;         /* forward, f32, two dims: channels of a block of x and of y (kernels/conv.h); 0: the plain layout */
} PlkConv;

/* Elements of x, w and y. */
static inline int64_t plk_conv_numel(const PlkConv *v, int which) {
  if (which == PLK_CONV_X) return v->n * v->g * v->c * v->insize;
  if (which == PLK_CONV_W) return v->g * v->o * v->c * v->ksize;
  return v->n * v->g * v->o * v->outsize;
}
/* Multiply-adds of one image. */
static inline double plk_conv_macs(const PlkConv *v) {
  return (double)v->outsize * (double)v->ksize * (double)v->c * (double)v->o * (double)v->g;
}

/* How the library's way is cut (conv_partition.c): units of `images` images and, where there is more than one slice,
 * `width` of the `whole` channels, or groups. */
enum { PLK_ALONG_INPUT, PLK_ALONG_OUTPUT, PLK_ALONG_GROUPS };
typedef struct PlkConvCut {
  int along;
  int64_t images, nimages, width, nslice, whole;
} PlkConvCut;
void plk_conv_cut(PlkConvCut *cut, const PlkConv *v);

/* f32, and bf16 where the processor multiplies it, through oneDNN, tail included; *done false where it has no fast form. */
PlStatus plk_conv_onednn(const PlkConv *v, bool *done);
/* Would it, in the layouts that v asks for? */
PlStatus plk_conv_onednn_takes(const PlkConv *v, bool *takes);
/* f32, 3×3, stride 1, a border of one: with 4/9 of the multiplications. Whether it is possible and faster: by shape. */
bool plk_conv_winograd_pays(const PlkConv *v);
PlStatus plk_conv_winograd(const PlkConv *v);
/* The same forward in blocks of channels, of which both have whole ones, and from plain tensors; also of few tiles. *tail: the tail is done. */
bool plk_conv_winograd_blocks_pays(const PlkConv *v);
PlStatus plk_conv_winograd_blocks(const PlkConv *v, bool *tail);
/* f32 and f64: columns and matrix products. */
PlStatus plk_conv_gemm(const PlkConv *v);
bool plk_conv_pointwise(const PlkConv *v); /* 1×1 at a stride of 1: x is its own columns */
/* Any dtype but f16 and bf16: the definition, loop by loop. Judge of the others. */
PlStatus plk_conv_plain(const PlkConv *v);

/* Planes of `space` values each from the plain layout into blocks of b of them, or back. */
PlStatus plk_conv_reblock(float *to, const float *from, int64_t planes, int64_t space, int64_t b, bool into);

/* The addend and relu of n elements of y, from element `at` on. */
void plk_conv_tail(const PlkConv *v, int64_t at, int64_t n);

/* out[i] = the sum of `n` parts, part j at parts + j * size, in a fixed tree; f32 or f64.
 * Overwrites the parts. */
PlStatus plk_conv_join(PlDtype dtype, void *out, void *parts, int64_t n, int64_t size);

#endif
