/* SPDX-License-Identifier: MIT
 * Tables of compiled primitives for all threads: who looks for one that is there takes no lock, so that threads which serve a model
 * do not meet here. Making one takes the table's mutex; of a set the least recently used goes first, one in use never. */
#ifndef PL_KERNELS_CPU_ONEDNN_ONEDNN_PLAN_TABLE_H
#define PL_KERNELS_CPU_ONEDNN_ONEDNN_PLAN_TABLE_H

#include "kernels/cpu/onednn/onednn_lib.h"

#ifdef PLK_HAVE_ONEDNN

#include <pthread.h>
#include <stdatomic.h>

/* How plans begin; their key follows it. */
typedef struct PlkPlanHead {
  int64_t slot; /* its place in the table; -1: it has none, and goes when it is put back */
  bool none;    /* the library has no fast form: remembered, so it is asked once */
} PlkPlanHead;

/* A place of the table. Who counts himself among its users may read the plan, until he leaves; who changes it makes the count
 * CHANGING where it is 0. The hash tells at a glance that it is another plan; it may be behind, so the key is compared, too. */
typedef struct PlkPlanSlot {
  atomic_int users;
  _Atomic uint64_t hash, tick;
  PlkPlanHead *plan;
} PlkPlanSlot;

typedef struct PlkPlanTable {
  const char *what;                     /* for messages: "a convolution plan" */
  size_t plan_bytes, key_bytes;         /* of 8-byte integers, compared as bytes */
  PlStatus (*build)(PlkPlanHead *plan); /* fills in a zeroed plan with a key */
  void (*clear)(PlkPlanHead *plan);     /* frees what it holds, also of one that was half built */
  int sets, ways;
  PlkPlanSlot *slots;   /* sets * ways, zeroed */
  pthread_mutex_t lock; /* of those who change the table */
  _Atomic uint64_t tick;
} PlkPlanTable;

/* Borrows the plan of that key, which is made if need be. *out NULL: the library has no fast form. */
PlStatus plk_plan_get(PlkPlanTable *t, const void *key, PlkPlanHead **out);
void plk_plan_put(PlkPlanTable *t, PlkPlanHead *plan); /* NULL is fine */
/* One that is nobody else's. */
PlStatus plk_plan_make(const PlkPlanTable *t, const void *key, PlkPlanHead **out);
void plk_plan_free(const PlkPlanTable *t, PlkPlanHead *plan); /* NULL is fine */

#endif
#endif
