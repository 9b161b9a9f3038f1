/* SPDX-License-Identifier: MIT
 * Contexts of custom gradient rules (context.c): the table that forward and backward of one call share, and how a node
 * finds it again. custom.c makes rules with them, custom_backward.c runs them. */
#ifndef PL_BINDINGS_CONTEXT_H
#define PL_BINDINGS_CONTEXT_H

#include "bindings/lib.h"

enum { MAX_CUSTOM = 56 }; /* tensor inputs, outputs, and saved tensors whose versions are kept outside the table */

/* Places in one weak-valued table of a Lua state, and which of them are free. Every rule holds a reference: a node
 * may die after its state. */
typedef struct Slots {
  size_t refs;
  const void *registry; /* tells the state */
  int table;            /* reference of the weak table in the registry */
  int runner;           /* likewise of l_rule_runner */
  int next, nfree, cap;
  int *free;
} Slots;

/* What the engine keeps of a rule, in one piece with the PlRule before it. */
typedef struct RuleData {
  PlRule rule; /* first: the engine frees the piece through it */
  Slots *slots;
  int slot;           /* slots' table[slot] is the context while that lives */
  uint32_t nin;
  uint64_t needs;     /* bit i: tensor input i wanted a gradient */
  int nsaved;         /* what ctx:save noted */
  uint32_t *versions; /* of them */
  int64_t sizes[];    /* ndim, dtype and sizes of every tensor input; then the versions */
} RuleData;

/* The forward or backward that is running, so that methods of its context need no look-ups. */
typedef struct Running {
  const void *ctx; /* lua_topointer of the context */
  uint64_t needs;
  uint32_t nin;
  int nsaved;
  uint32_t *versions;
  bool forward;
  bool marks; /* this forward has marked something */
} Running;
extern _Thread_local Running *l_rule_running;

/* Private keys of a context: addresses, so no field of the user's can clash. */
extern const char l_non_diff_key, l_dirty_key, l_upstream_key;
int l_rule_marked(lua_State *L);

void l_push_context_methods(lua_State *L); /* the table that contexts inherit from */
void l_push_slots(lua_State *L);           /* the state's Slots, a userdata holding the pointer; made at first use */
/* Stores the context at `ctx` in a place of its own; raises when memory is out. */
int l_slot_take(lua_State *L, Slots *s, int ctx);
int l_slot_take_in(lua_State *L, Slots *s, int table, int ctx); /* with the weak table at hand */
void l_slot_give(Slots *s, int slot);
void l_slots_release(Slots *s);
/* Runs one backward, under lua_pcall; argument 1 says which. Upvalues: the weak table, the metatable of new boxes. */
enum { RUNNER_CONTEXTS = 1, RUNNER_BOXES = 2 };
int l_rule_runner(lua_State *L);
/* PlRule's bwd, ud is a RuleData: calls the function at META_BACKWARD in the metatable of the rule's context. */
enum { META_BACKWARD = 1, META_JVP = 2 };
/* PlRule's jvp (forward.c), for rules whose contexts have a function at META_JVP. */
PlStatus l_rule_jvp(void *ud, PlNode *n, PlTensor *const *v, PlTensor *const *out, PlTensor **t);
PlStatus l_rule_backward(void *ud, PlNode *n, PlTensor *const *dy, const bool *want, PlTensor **dx);

#endif
