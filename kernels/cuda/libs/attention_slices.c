/* SPDX-License-Identifier: MIT
 * How much of a batch one plan of attention takes: see cudnn_ops.h. */
#include "kernels/cuda/libs/cudnn_ops.h"

bool plc_sdpa_slice(const PlcSdpaKey *k, int step, int64_t *B, int64_t *H) {
  const double head = 2.0 * (double)k->L * (double)k->S, fits = head > 0 ? (double)k->workspace * 0.95 / head : 1; /* it rounds up, too */
  const int64_t all = k->B * k->H;
  *B = k->B, *H = k->H;
  if (step == 0) return all > 0;
  int64_t heads = fits < (double)all ? (int64_t)fits : all / 2;
  if (heads < 1) heads = 1; /* the plan may need less than that */
  for (int i = 1; i < step; i++) heads /= 2;
  if (heads < 1 || heads >= all) return false;
  if (heads >= k->H) { /* equal slices, so that one plan serves all but the last */
    const int64_t most = heads / k->H, slices = (k->B + most - 1) / most;
    *B = (k->B + slices - 1) / slices;
  } else {
    const int64_t slices = (k->H + heads - 1) / heads;
    *B = 1, *H = (k->H + slices - 1) / slices;
  }
  return true;
}
