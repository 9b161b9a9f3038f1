/* SPDX-License-Identifier: MIT
 * What nodes save for backward may pass through functions of the embedding program: pack when it is saved, unpack when
 * it is used. Recording asks pl_state.packing, the innermost open pair; NULL: tensors are saved as they are. */
#ifndef PL_ENGINE_GRAD_SAVED_TENSORS_HOOKS_H
#define PL_ENGINE_GRAD_SAVED_TENSORS_HOOKS_H

#include "engine/grad/node.h"

/* All functions but drop and discard may fail. Inside them nothing is recorded and nothing is packed. */
struct PlPacking {
  /* *packed represents t from now on; it stays NULL where t shall be saved as it is. */
  PlStatus (*pack)(void *ud, PlTensor *t, void **packed);
  /* *out (owned) := what was packed; `like` has its shape, dtype and device, but no values. May run several times. */
  PlStatus (*unpack)(void *ud, void *packed, const PlTensor *like, PlTensor **out);
  void (*discard)(void *ud, void *packed); /* once for every packed value */
  void (*drop)(void *ud);                  /* once, at the end */
  void *ud;
  uint32_t refs;
  bool closed;
  struct PlPacking *outer; /* in which it was opened; held */
};

/* Opens a pair: it is the innermost one now. The caller gets a reference; *p was malloc'ed. */
void pl_packing_open(PlPacking *p);
/* Closes it, wherever in the nest it is, or in that of another coroutine; what it has packed is unpacked with it all the same.
 * Takes the caller's reference. */
void pl_packing_close(PlPacking *p);
/* The innermost pair is p now, or where that is closed the innermost open one around it. */
void pl_packing_use(PlPacking *p);
PlPacking *pl_packing_retain(PlPacking *p_or_null);
void pl_packing_release(PlPacking *p_or_null);

/* One packed tensor with its place in the history. */
typedef struct PlPacked PlPacked;
/* t, packed with the innermost pair; its entries of all keys but `except` are kept. *out stays NULL where t is to be
 * kept as it is. */
PlStatus pl_packed_make(PlPacked **out, PlTensor *t, const PlKey *except);
/* *out (owned) := the tensor, with its history. name: of the node, for messages. */
PlStatus pl_packed_get(const PlPacked *p, const char *name, PlTensor **out);
PlTensor *pl_packed_shell(const PlPacked *p); /* borrowed: of its shape, with its history */
void pl_packed_free(PlPacked *p);

/* Moves large saved tensors elsewhere (saved_tensors_offload.c): those of a device to the host, or all to a file in `folder` (NULL: the
 * folder for temporary files). Tensors below `least` bytes and leaves that require gradients stay. */
PlStatus pl_offload_new(PlPacking **out, bool disk, const char *folder_or_null, size_t least);

#endif
