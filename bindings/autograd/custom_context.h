/* SPDX-License-Identifier: MIT
 * Contexts of custom gradient rules (custom_context.c): the table that forward and backward of one call share, and how a node
 * finds it again. custom.c makes rules with them, custom_backward.c runs them. */
#ifndef PL_BINDINGS_AUTOGRAD_CUSTOM_CONTEXT_H
#define PL_BINDINGS_AUTOGRAD_CUSTOM_CONTEXT_H

#include "bindings/collector/kept.h"
#include "bindings/core/lib.h"

enum { MAX_CUSTOM = 56 }; /* tensor inputs, outputs, and saved tensors whose versions are kept outside the table */

/* What the engine keeps of a rule, in one piece with the PlRule before it. */
typedef struct RuleData {
  PlRule rule; /* first: the engine frees the piece through it. rule.kept: the place of the context */
  Kept *kept;
  uint32_t nin;
  uint64_t nils;   /* bit i: what ctx:save got at i was nil, and the node does not have it */
  int64_t sizes[]; /* ndim, dtype and sizes of every tensor input */
} RuleData;

/* The forward or backward that is running, so that methods of its context need no look-ups. */
typedef struct Running {
  const void *ctx; /* lua_topointer of the context */
  uint64_t needs;
  uint32_t nin;
  int nsaved;         /* in forward: what ctx:save noted so far, … */
  uint32_t *versions; /* … their versions, … */
  Box **saved;        /* … and which of args they are; NULL: the value is in the context */
  Box *const *args;   /* nin of them, on the stack as long as forward runs */
  PlNode *node;       /* in backward: it holds what was saved, but … */
  uint64_t nils;      /* … where a bit is set, nil was */
  bool forward;
  bool marks; /* this forward has marked something */
} Running;
extern _Thread_local Running *l_rule_running;

/* Private keys of a context: addresses, so no field of the user's can clash. */
extern const char l_non_diff_key, l_dirty_key;
int l_rule_marked(lua_State *L);

void l_push_context_methods(lua_State *L);    /* the table that contexts inherit from */
int l_rule_runner_ref(lua_State *L, Kept *k); /* reference of l_rule_runner's closure, made at first use */
/* Runs one backward, under lua_pcall; argument 1 says which. Upvalues: the table of kept objects, the metatable of new boxes. */
enum { RUNNER_KEPT = 1, RUNNER_BOXES = 2 };
int l_rule_runner(lua_State *L);
/* PlRule's bwd, ud is a RuleData: calls the function at META_BACKWARD in the metatable of the rule's context. */
enum { META_BACKWARD = 1, META_JVP = 2 };
/* PlRule's jvp (forward_mode.c), for rules whose contexts have a function at META_JVP. */
PlStatus l_rule_jvp(void *ud, PlNode *n, PlTensor *const *v, PlTensor *const *out, PlTensor **t);
PlStatus l_rule_backward(void *ud, PlNode *n, PlTensor *const *dy, const bool *want, PlTensor **dx);

#endif
