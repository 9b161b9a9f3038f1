/* SPDX-License-Identifier: MIT
 * A compiled convolution, between onednn_conv.c, which makes and runs it, and onednn_conv_cache.c, which keeps it. */
#ifndef PL_KERNELS_CPU_ONEDNN_ONEDNN_CONV_PLAN_H
#define PL_KERNELS_CPU_ONEDNN_ONEDNN_CONV_PLAN_H

#include "kernels/cpu/onednn/onednn_plan_table.h"

#ifdef PLK_HAVE_ONEDNN

struct PlkConvPlan {
  PlkPlanHead head;
  PlkConvKey key;
  dnnl_primitive_t conv, reorder[3]; /* reorder NULL: that tensor is used in place */
  dnnl_primitive_desc_t pd;          /* owns what `blocked` and `pad` point to */
  Md plain[3], bias;
  MdRef blocked[3], pad;
  dnnl_primitive_t by_image; /* of the common tensor, if the key says so */
  Md image[2];               /* one image of it, plain and blocked */
  size_t bytes[3], scratch, image_bytes;
};

/* Fills in a zeroed plan with a key; head.none where the library has no fast form. On failure clear it. */
PlStatus plk_conv_plan_build(PlkConvPlan *p);
void plk_conv_plan_clear(PlkConvPlan *p);

#endif
#endif
