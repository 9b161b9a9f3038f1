/* SPDX-License-Identifier: MIT
 * Hidden results that nobody reads, of ops whose kernels can do without them (PlOp.spare), are not made. */
#include <stdlib.h>

#include "engine/graph/passes/pass.h"

PlStatus pl_pass_spare(PlGraph *f, int32_t *removed) {
  *removed = 0;
  uint8_t *read = calloc((size_t)f->nvals + 1, 1);
  if (!read) PL_FAIL(PL_ERR_OOM, "out of memory to plan a graph");
  for (int32_t o = 0; o < f->noutputs; o++) read[f->outputs[o]] = 1;
  for (int32_t i = 0; i < f->nnodes; i++)
    for (int32_t k = 0; k < f->nodes[i].nin; k++)
      if (f->nodes[i].in[k] >= 0) read[f->nodes[i].in[k]] = 1;
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    for (int32_t o = 0; o < n->nout && n->op->spare; o++) {
      PlGValue *v = &f->vals[n->first + o];
      if (!(n->op->spare >> o & 1) || read[n->first + o] || v->dtype == PL_NDTYPE) continue;
      v->dtype = PL_NDTYPE;
      v->ndim = 0;
      v->numel = f->stores[v->store].bytes = 0;
    }
  }
  free(read);
  return PL_OK;
}
