/* SPDX-License-Identifier: MIT
 * Inputs of the ops of recurrent_net.c, and the second gradient that recurrent_net_double_backward.c makes for them. */
#ifndef PL_ENGINE_OPS_RECURRENT_RECURRENT_NET_H
#define PL_ENGINE_OPS_RECURRENT_RECURRENT_NET_H

#include "engine/ops/op.h"
#include "kernels/recurrent_library.h"

enum { PL_R_X, PL_R_STATE, PL_R_W, PL_R_LENGTHS };
/* The gradient's inputs begin with the same three. */
enum { PL_RB_Y = 3, PL_RB_RESERVE, PL_RB_DY, PL_RB_DSTATE, PL_RB_LENGTHS, PL_RB_NIN };

/* Does the open device's library compute such a net? */
bool pl_recurrent_takes(int device, const PlkRecurrent *n);

PlStatus pl_recurrent_bwd_grad(PlMaker *g);

#endif
