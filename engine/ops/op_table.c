/* SPDX-License-Identifier: MIT
 * The table of all ops, made from ops.def, and the two ways into it: by name (bindings, once per op) and by
 * descriptor (caches, every call: a small pointer hash, filled once). */
#include <pthread.h>
#include <string.h>

#include "engine/ops/names.h"
#include "engine/ops/op.h"

static const PlOp *const table[] = {
#define OP(name) &pl_op_##name,
#include "engine/ops/ops.def"
#undef OP
};

enum { NOPS = (int)PL_NOP, NSLOTS = 4096 };
_Static_assert((int)(sizeof table / sizeof table[0]) == NOPS, "one entry an op");
_Static_assert(NOPS * 2 < NSLOTS, "the pointer hash must stay half empty");

/* Written once, before the first lookup returns: addresses are known only after loading. Holds id + 1. */
static uint16_t slots[NSLOTS];
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static unsigned slot_of(const PlOp *op) {
  uint64_t h = (uint64_t)(uintptr_t)op / 16 * UINT64_C(0x9E3779B97F4A7C15);
  return (unsigned)(h >> 52) & (NSLOTS - 1);
}

static void fill(void) {
  for (int i = 0; i < NOPS; i++) {
    unsigned s = slot_of(table[i]);
    while (slots[s]) s = (s + 1) & (NSLOTS - 1);
    slots[s] = (uint16_t)(i + 1);
  }
}

int pl_op_id(const PlOp *op) {
  pthread_once(&filled, fill);
  for (unsigned s = slot_of(op); slots[s]; s = (s + 1) & (NSLOTS - 1))
    if (table[slots[s] - 1] == op) return slots[s] - 1;
  return -1;
}

const PlOp *pl_op_find(const char *name) {
  for (int i = 0; i < NOPS; i++)
    if (strcmp(table[i]->name, name) == 0) return table[i];
  return NULL;
}

const PlOp *const *pl_ops(int *count) {
  *count = NOPS;
  return table;
}
