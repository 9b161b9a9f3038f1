/* SPDX-License-Identifier: MIT
 * A compiled graph that runs inside of a checkpointed function counts as one operation: what it computes, what it reads and
 * what it writes. */
#include <stdlib.h>

#include "engine/call/call.h"
#include "engine/grad/checkpoint_internal.h"
#include "engine/graph/ir/graph.h"

static PlTensor *captured(const PlGraph *f, PlGVal v) {
  return f->vals[v].kind == PL_FV_CAPTURE && f->vals[v].real && !f->vals[v].real->a.symbolic ? f->vals[v].real : NULL;
}

/* What it computes: operations with their settings, what they read, and constants. A function that was traced anew between the
 * runs, as a number in it changed, is another one. */
static uint64_t content_of(const PlGraph *f) {
  uint64_t h = pl_ck_mix(14695981039346656037ULL, (uint64_t)f->nvals);
  for (int32_t i = 0; i < f->nnodes; i++) {
    const PlGNode *n = &f->nodes[i];
    h = pl_ck_mix(pl_ck_mix(h, (uint64_t)(uintptr_t)n->op), (uint64_t)n->window);
    if (n->attrs) h = pl_ck_mix_bytes(h, n->attrs, pl_attrs_size(n->attrs));
    h = pl_ck_mix_bytes(h, n->in, (size_t)n->nin * sizeof *n->in);
  }
  for (PlGVal v = 0; v < f->nvals; v++) {
    const PlTensor *t = f->vals[v].kind == PL_FV_CONST ? f->vals[v].real : NULL;
    if (!t || t->a.device != PL_CPU) continue;
    pl_ck_mix_tensor(&h, t);
    if (t->a.contiguous && !t->a.weak) h = pl_ck_mix_bytes(h, t->a.data, (size_t)t->a.numel * pl_dtype_size((PlDtype)t->a.dtype));
  }
  return h;
}

PlStatus pl_checkpoint_enter_graph(const PlGraph *f, PlTensor *const *in) {
  const size_t room = (size_t)f->ninputs + (size_t)f->nvals;
  PlTensor **all = malloc((room + 1) * sizeof *all), **written = calloc((size_t)f->nvals + 1, sizeof *written);
  int n = 0, nwritten = 0;
  if (!all || !written) {
    free(all);
    free(written);
    PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
  }
  uint64_t content = 0;
  if (pl_state.checkpoint_depth == 0) {
    content = content_of(f);
    for (int32_t i = 0; i < f->ninputs; i++) all[n++] = in[i];
    for (PlGVal v = 0; v < f->nvals; v++)
      if (captured(f, v)) all[n++] = captured(f, v);
    for (int32_t i = 0; i < f->nnodes; i++)
      for (int32_t k = 0; k < pl_gnode_written(&f->nodes[i]); k++) {
        PlGVal root = f->stores[f->vals[f->nodes[i].in[k]].store].first;
        PlTensor *t = f->vals[root].kind == PL_FV_INPUT ? in[f->vals[root].slot] : captured(f, root);
        if (t && !pl_ck_among(written, nwritten, t)) written[nwritten++] = t;
      }
  }
  PlStatus s = pl_checkpoint_enter("compiled graph", &content, sizeof content, f->ndraws > 0, all, n, written, nwritten);
  for (int i = 0; i < nwritten && s == PL_OK; i++)
    if ((s = pl_checkpoint_writes("compiled graph", written[i])) != PL_OK) pl_checkpoint_failed();
  free(all);
  free(written);
  return s;
}

void pl_checkpoint_leave_graph(const PlGraph *f, PlTensor *const *out) {
  if (!out) {
    pl_checkpoint_failed();
    return;
  }
  pl_checkpoint_leave(out, f->noutputs, NULL, 0);
  for (PlGVal v = 0; v < f->nvals; v++) {
    PlTensor *t = captured(f, v);
    if (t) pl_checkpoint_wrote(t); /* perhaps written: looked at again */
  }
}
