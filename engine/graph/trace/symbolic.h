/* SPDX-License-Identifier: MIT
 * What symbolic.c (ops become nodes) and symbolic_write.c (writes become new values) share. */
#ifndef PL_ENGINE_GRAPH_TRACE_SYMBOLIC_H
#define PL_ENGINE_GRAPH_TRACE_SYMBOLIC_H

#include "engine/call/call.h"
#include "engine/graph/ir/graph.h"
#include "engine/tensor/hooks.h"

static inline PlSymStorage *pl_sym_storage(const PlTensor *t) { return (PlSymStorage *)(void *)t->storage; }
/* t names value v from now on. */
static inline void pl_sym_point(PlTensor *t, PlGVal v) { t->a.data = (void *)(uintptr_t)(v + 1); } /* no address: graph.h */
/* After its memory changed through another handle, a view is taken again. */
PlStatus pl_sym_refresh(PlTensor *t);
/* Attributes of as_strided and strided_put for t's window, `offset` elements into the whole. */
PlStatus pl_sym_window(const PlOp *op, const PlTensor *t, int64_t offset, PlAttrs *a);
/* Real tensors become handles on leaves of the graph, which carry their gradient entries where tapes are kept. */
PlStatus pl_sym_enter(PlGraph *f, PlTensor *t, PlTensor **out);
/* What t is captured as, retained: itself, or a handle without a history where the traced function has turned its requires_grad off. */
PlStatus pl_graph_switched(const PlGraph *f, PlTensor *t, PlTensor **out);
/* What results were computed from while it required a gradient leads to it, also where it rests at the end of the function: it requires
 * one while they are recorded. woken, freed by the second: which ones. */
PlStatus pl_graph_switches_wake(const PlGraph *f, bool **woken);
PlStatus pl_graph_switches_rest(const PlGraph *f, bool *woken);
/* The graph of a symbolic one among the inputs, else the one that is traced. */
PlGraph *pl_sym_graph_of(PlTensor *const *in, int nin);
PlStatus pl_sym_node(PlGraph *f, PlCall *c, uint8_t flags, int32_t *node);
/* A node of a saved graph, in f again as its trace had it: of that stage (origin: the node that it repeats, or -1), under that name.
 * Errors: those of op. */
PlStatus pl_sym_emit(PlGraph *f, int stage, int origin, const char *name, const PlOp *op, PlTensor **in, int nin, const PlAttrs *a,
                     PlTensor **out);
/* t is about to be written: an error where nobody knows what shares its memory without the graph. */
PlStatus pl_sym_writes(PlGraph *f, const PlTensor *t);
/* Ops that always write into inputs. */
PlStatus pl_sym_mutate(PlGraph *f, PlCall *c, PlTensor **out);
/* A pointwise call whose result is not row-major, with its history: operations in the order of memory, and a view. symbolic_strided.c */
PlStatus pl_sym_apply_strided(const PlCall *c, PlTensor **out);

#endif
