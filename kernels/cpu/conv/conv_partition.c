/* SPDX-License-Identifier: MIT
 * Into which units a convolution in blocked layouts is cut: by its shape alone, as the bits of sums over images
 * depend on it. The figures were measured on a core with 1 MB of second cache. */
#include "kernels/cpu/conv/conv.h"
#include "kernels/cpu/sizes.h"

enum { LANES = 16, WIDE = 32, UNITS = 16, PARTS = 8, PART_ELEMENTS = 1 << 23 };
/* About 20 ms, so that Ctrl-C is heard; and what is worth a unit of its own. */
static const double POLL_MACS = 2e9, UNIT_MACS = 1 << 24;
/* Elements of w from which slices are narrowed so that the weights of one stay in the second cache, and the
 * weights of such a slice. */
enum { LARGE = 190 << 10, STAYS = 150 << 10, LARGE_DW = 160 << 10, STAYS_DW = 64 << 10, SMALL_IMAGE = 128 };

/* Slices are made of the channels of what is written; of dw, of those of the larger tensor, which then is read
 * once, while every slice reads the other one. */
static int slices_along(const PlkConv *v) {
  if (v->g > 1) return PLK_ALONG_GROUPS;
  if (v->kind == PLK_CONV_BWD_WEIGHT) return v->c * v->insize > v->o * v->outsize ? PLK_ALONG_INPUT : PLK_ALONG_OUTPUT;
  return v->kind == PLK_CONV_BWD_INPUT ? PLK_ALONG_INPUT : PLK_ALONG_OUTPUT;
}

/* Weights that do not stay in the second cache are streamed for each image: once, which shows where the image is
 * small, or, by dw, read and written. A 1×1 convolution keeps its weights in cache by itself. */
static int64_t slices_for_cache(const PlkConv *v) {
  const int64_t size = plk_conv_numel(v, PLK_CONV_W);
  if (v->g > 1) return 1;
  if (v->kind == PLK_CONV_BWD_WEIGHT) return size > LARGE_DW ? plk_ceil_div(size, STAYS_DW) : 1;
  return size > LARGE && v->outsize <= SMALL_IMAGE && v->ksize > 1 ? plk_ceil_div(size, STAYS) : 1;
}

void plk_conv_cut(PlkConvCut *q, const PlkConv *v) {
  const bool dw = v->kind == PLK_CONV_BWD_WEIGHT;
  const double macs = plk_conv_macs(v), enough = macs * (double)v->n / UNIT_MACS;
  q->along = slices_along(v);
  q->whole = q->along == PLK_ALONG_GROUPS ? v->g : q->along == PLK_ALONG_INPUT ? v->c : v->o;
  int64_t slices = slices_for_cache(v);
  if (v->n < PARTS && enough >= 1) slices = plk_max64(slices, plk_ceil_div(PARTS, v->n));
  /* Whole vectors of channels; forward two of them, as the library's kernels reuse what they load of x: with slices of 16
   * channels a ResNet-50 of one image takes 1.05 times as long. */
  const int64_t each = q->along == PLK_ALONG_GROUPS ? v->c : 1;
  const int64_t lanes = v->kind == PLK_CONV_FWD && v->g == 1 ? WIDE : LANES / plk_min64(LANES, each);
  slices = plk_min64(slices, plk_max64(1, q->whole / lanes));
  q->width = plk_min64(q->whole, plk_ceil_div(plk_ceil_div(q->whole, slices), lanes) * lanes);
  q->nslice = plk_ceil_div(q->whole, q->width);

  int64_t parts = plk_ceil_div(dw ? PARTS : UNITS, q->nslice);
  if ((double)parts * (double)q->nslice > enough) parts = plk_max64(1, (int64_t)(enough / (double)q->nslice));
  const double unit = macs / (double)q->nslice;
  q->images = plk_ceil_div(v->n, plk_min64(parts, v->n));
  if ((double)q->images * unit > POLL_MACS) q->images = plk_max64(1, (int64_t)(POLL_MACS / unit));
  if (dw) {
    const int64_t most = plk_max64(1, PART_ELEMENTS / plk_conv_numel(v, PLK_CONV_W));
    q->images = plk_max64(q->images, plk_ceil_div(v->n, most));
  }
  q->nimages = plk_ceil_div(v->n, q->images);
}
