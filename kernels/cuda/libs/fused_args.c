/* SPDX-License-Identifier: MIT
 * What a run of a fused group hands to its kernel: addresses, numbers of the host, parameters, and whether whole packs can
 * be read. No CUDA is needed for it. */
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/libs/fused_source.h"
#include "kernels/elementwise.h"
#include "kernels/elementwise_codes.h"
#include "kernels/norm.h"

_Static_assert(sizeof(PlcFusedArgs) <= 4096, "what a launch can carry");

/* Division by cols for numbers below 2^31: as plc_div_by of kernels/cuda/device.h (Granlund, Montgomery, PLDI 1994). */
static void divide_by(PlcFusedArgs *a, int64_t cols) {
  uint32_t d = (uint32_t)cols, s = 0;
  while (((uint64_t)1 << s) < d) s++;
  a->by_cols.d = d;
  a->by_cols.s = s;
  a->by_cols.m = (uint32_t)(((uint64_t)1 << 32) * (((uint64_t)1 << s) - d) / d + 1);
}

/* The one parameter of a member that works along rows: var's correction, a norm's eps. */
static double along(const PlkFusedMember *m, const PlAttrs *from) {
  if (from && pl_attr_has(from, 1)) return pl_attr_f(from, 1);
  if (m->code == PLK_FUSED_VAR || m->code == PLK_FUSED_STD) return 1;
  return plk_norm_default_eps(m->dtype);
}

static void parameters(PlcFusedArgs *a, const PlkFused *g, const PlAttrs *const *attrs) {
  int n = 0;
  for (int i = 0; i < g->nmember; i++) {
    if (!g->member[i].set) continue;
    PlcFusedParams *p = &a->p[n++];
    const PlAttrs *from = attrs ? attrs[i] : NULL;
    if (g->member[i].code >= PLK_FUSED_SUM) {
      p->f[0] = along(&g->member[i], from);
      continue;
    }
    for (int k = 0; k < 3 && from; k++) {
      if (!pl_attr_has(from, k)) continue;
      const bool whole = (from->isint >> k) & 1;
      p->set |= 1u << k;
      p->f[k] = whole ? (double)pl_attr_i(from, k) : pl_attr_f(from, k);
      p->i[k] = whole ? pl_attr_i(from, k) : (int64_t)p->f[k];
    }
    /* the bounds of halves are the type's own */
    const PlDtype d = (PlDtype)g->member[i].result;
    if (g->member[i].code == PLK_EW_NAN_TO_NUM && (d == PL_F16 || d == PL_BF16))
      for (int k = 1; k <= 2; k++)
        if (!((p->set >> k) & 1)) {
          const double top = d == PL_F16 ? 65504.0 : 0x1.fep127;
          p->set |= 1u << k;
          p->f[k] = k == 1 ? top : -top;
        }
  }
}

void plc_fused_args(const PlkFused *g, const PlkFusedRun *r, PlcFusedArgs *a, int64_t *blocks, unsigned *threads) {
  const int64_t pack = plc_fused_pack(g);
  memset(a, 0, sizeof *a);
  a->numel = r->numel;
  a->cols = r->cols > 0 ? r->cols : r->numel;
  a->packed = !g->rows;
  a->wide = r->numel > INT32_MAX;
  a->width = plc_fused_width(a->cols);
  if (!a->wide) divide_by(a, a->cols);
  for (int i = 0; i < g->narg; i++) {
    const PlArray *x = r->arg[i];
    if (g->arg[i].kind == PLK_FUSED_NUMBER) {
      a->number[i] = plc_number_f(x);
      continue;
    }
    a->at[i] = x->data;
    if (g->arg[i].kind <= PLK_FUSED_ROW && (uintptr_t)x->data % (pl_dtype_size((PlDtype)x->dtype) * (size_t)pack)) a->packed = false;
    if ((g->arg[i].kind == PLK_FUSED_ROW || g->arg[i].kind == PLK_FUSED_COL) && a->cols % pack) a->packed = false;
  }
  parameters(a, g, r->attrs);
  const int64_t rows = r->numel / a->cols, packs = (r->numel + pack - 1) / pack;
  *threads = g->rows && a->width > 32 ? (unsigned)a->width : PLC_BLOCK;
  *blocks = !g->rows ? (packs + PLC_BLOCK - 1) / PLC_BLOCK : a->width > 32 ? rows : (rows + 7) / 8;
}
