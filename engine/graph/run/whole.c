/* SPDX-License-Identifier: MIT
 * See whole.h. */
#include <stdlib.h>

#include "engine/graph/run/whole.h"
#include "kernels/kernel.h"

static bool of_piece(const PlGNode *n) { return n->whole > 0 && (n->flags & PL_FN_MUTATES); }

PlStatus pl_whole_find(int32_t **ends, const PlGraph *f) {
  int32_t most = 0;
  *ends = NULL;
  for (int32_t i = 0; i < f->nnodes; i++)
    if (of_piece(&f->nodes[i]) && f->nodes[i].whole > most) most = f->nodes[i].whole;
  if (most == 0) return PL_OK;
  int32_t *last = malloc(((size_t)most + 1) * sizeof *last), *end = malloc((size_t)f->nnodes * sizeof *end);
  if (!last || !end) {
    free(last);
    free(end);
    PL_FAIL(PL_ERR_OOM, "out of memory to run a graph");
  }
  for (int32_t i = 0; i < f->nnodes; i++)
    if (of_piece(&f->nodes[i])) last[f->nodes[i].whole] = i;
  for (int32_t i = 0; i < f->nnodes; i++) end[i] = of_piece(&f->nodes[i]) ? last[f->nodes[i].whole] : -1;
  free(last);
  *ends = end;
  return PL_OK;
}

void pl_whole_over(PlWhole *w) {
  if (w->until >= 0) plk_interrupt_hold(-1);
  w->until = -1;
}

PlStatus pl_whole_at(PlWhole *w, int32_t i) {
  if (i > w->until) pl_whole_over(w);
  PL_TRY(plk_poll()); /* many small kernels never ask */
  const int32_t end = w->ends ? w->ends[i] : -1;
  if (end < 0) return PL_OK;
  if (w->until < 0) plk_interrupt_hold(1);
  if (end > w->until) w->until = end;
  return PL_OK;
}
