/* SPDX-License-Identifier: MIT
 * CTC between our own kernels (ctc.cu), what surrounds a library's (ctc_library.cu), and the library (libs/ctc.c). */
#ifndef PL_KERNELS_CUDA_LOSS_CTC_H
#define PL_KERNELS_CUDA_LOSS_CTC_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Our own kernels, for all sequences or for those with own[n] != 0. What a library computed has no forward variables, so the
 * first of them is +infinity; backward makes them where it needs them. */
PlStatus plc_ctc_loss_own(const PlkCall *call, const int *own);
PlStatus plc_ctc_loss_bwd_own(const PlkCall *call, const int *own);

/* A call of which a library computes what it can: in memory of the device, one scratch block. */
typedef struct PlcCtc {
  const PlkCall *call;
  int at;                         /* call->in[at]: log_probs */
  int *labels, *letters, *frames; /* all letters side by side, how many a sequence has, its frames; sound in any case */
  int *own;                       /* per sequence: the library must not see it, or did not answer */
  float *costs;
} PlcCtc;

enum { PLC_CTC_LETTERS = 255 }; /* at most, for the library */

PlStatus plc_ctc_begin(PlcCtc *c, const PlkCall *call, int at); /* the scratch is c->labels' */
/* call->out[0] from the library's costs or, there already, gradients, and from our own kernels. */
PlStatus plc_ctc_loss_end(const PlcCtc *c);
PlStatus plc_ctc_loss_bwd_end(const PlcCtc *c);

#ifdef __cplusplus
}
#endif
#endif
