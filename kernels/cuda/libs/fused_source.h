/* SPDX-License-Identifier: MIT
 * Fused groups as source text (fused_source.c); no CUDA is needed to write it. */
#ifndef PL_KERNELS_CUDA_LIBS_FUSED_SOURCE_H
#define PL_KERNELS_CUDA_LIBS_FUSED_SOURCE_H

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/fused.h"
#ifdef __cplusplus
}
#endif

#ifdef __cplusplus
extern "C" {
#endif

bool plc_fused_takes(int code, PlDtype dtype, PlDtype result);
PlStatus plc_fused_source(const PlkFused *group, char **out); /* malloc'ed */

/* ---- what a kernel gets (fused_args.c); kernels/cuda/fused.h has the same structs for the device ---- */

enum { PLC_FUSED_PARAMS = 16 };
typedef struct PlcFusedParams {
  double f[3];
  int64_t i[3];
  unsigned set;
} PlcFusedParams;
typedef struct PlcFusedArgs {
  int64_t numel, cols;
  struct {
    uint32_t d, m, s;
  } by_cols;
  bool wide, packed;
  void *at[PLK_FUSED_ARGS];
  double number[PLK_FUSED_ARGS];
  PlcFusedParams p[PLC_FUSED_PARAMS];
} PlcFusedArgs;

/* Elements that a thread takes at once: 16 bytes of the widest argument. */
int plc_fused_pack(const PlkFused *group); /* fused_source.c */
/* Fills *out for a run; the number of packs. */
int64_t plc_fused_args(const PlkFused *group, const PlkFusedRun *run, PlcFusedArgs *out);

#ifdef __cplusplus
}
#endif
#endif
