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
bool plc_fused_takes_rows(int64_t rows, int64_t cols);
PlStatus plc_fused_source(const PlkFused *group, char **out); /* malloc'ed */

/* ---- text (fused_source.c; groups of rows: fused_rows.c) ---- */

typedef struct PlcText {
  char *s;
  size_t n, room;
  bool failed;
} PlcText;
void plc_say(PlcText *t, const char *fmt, ...) PL_PRINTF(2, 3);
const char *plc_fused_element(int dtype); /* the type of an element in memory */
const char *plc_fused_math(int dtype);    /* and in arithmetic */
/* The line that computes elementwise member `at`; params: where its parameters are. */
void plc_fused_compute(PlcText *t, const PlkFusedMember *m, int at, int params);
void plc_fused_rows(PlcText *t, const PlkFused *group);
bool plc_fused_kept(const PlkFused *group); /* rows of one length that threads keep in registers */
int plc_fused_width(int64_t cols);          /* threads of a row (fused_source.c) */

/* ---- what a kernel gets (fused_args.c); kernels/cuda/elementwise/fused.h has the same structs for the device ---- */

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
  int width;
  void *at[PLK_FUSED_ARGS];
  double number[PLK_FUSED_ARGS];
  PlcFusedParams p[PLK_FUSED_PARAMS];
} PlcFusedArgs;

/* Elements that a thread takes at once: 16 bytes of the widest argument. */
int plc_fused_pack(const PlkFused *group); /* fused_source.c */
/* Fills *out for a run; *blocks of *threads each are enough for it. */
void plc_fused_args(const PlkFused *group, const PlkFusedRun *run, PlcFusedArgs *out, int64_t *blocks, unsigned *threads);

#ifdef __cplusplus
}
#endif
#endif
