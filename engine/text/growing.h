/* SPDX-License-Identifier: MIT
 * Arrays that grow: what the files of this folder keep texts and tokens in. */
#ifndef PL_ENGINE_TEXT_GROWING_H
#define PL_ENGINE_TEXT_GROWING_H

#include "engine/perilune.h"

typedef struct PlIds {
  int32_t *v;
  size_t n, room;
} PlIds;

/* Grows an array of elements of `size` bytes to hold `want`; `array` is the address of the pointer. Error: OOM. */
PlStatus pl_grow(void *array, size_t *room, size_t want, size_t size);
PlStatus pl_ids_push(PlIds *ids, int32_t id);

#endif
