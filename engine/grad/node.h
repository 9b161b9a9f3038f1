/* SPDX-License-Identifier: MIT
 * Keys, nodes, slots: the tape. Ownership runs tensor → node → upstream nodes and saved tensors; a key's
 * list of nodes (its tape) is weak. Nothing points downstream, so dropping outputs frees branches. */
#ifndef PL_ENGINE_GRAD_NODE_H
#define PL_ENGINE_GRAD_NODE_H

#include "engine/call/thread_state.h"
#include "engine/tensor/hooks.h"

typedef enum PlHookKind {
  PL_HOOK_REPLACE,    /* may give another gradient */
  PL_HOOK_CALLBACK,   /* runs after those, gets a gradient of its own, and its result is ignored */
  PL_HOOK_ACCUMULATED /* of a leaf: runs when a backward has added to .grad, and gets the leaf */
} PlHookKind;

/* A function of the embedding program with its data; `drop` is called once. */
typedef struct PlHook {
  PlStatus (*call)(void *ud, PlTensor *grad, PlTensor **replaced); /* *replaced stays NULL: keep grad */
  void (*drop)(void *ud);
  void *ud;
  struct PlHook *next, *last; /* last: of the list's first one: where it ends */
  uint64_t who;               /* what is called: the same function registered anew is the same */
  uint8_t kind;
  bool removed;            /* does not run any more */
  uint32_t length;         /* of the list's first one: at most so many are in it */
  const PlTensor *follows; /* it goes along when this tensor's history moves, as a write in place does; weak. NULL: it stays */
  int kept;                /* for the embedding program: what of its own the hook keeps alive */
} PlHook;

/* A gradient rule of the embedding program: dx[i] (owned) for every i with want[i], NULL: none. */
typedef struct PlRule {
  PlStatus (*bwd)(void *ud, PlNode *node, PlTensor *const *dy, const bool *want, PlTensor **dx);
  /* Tangents t[o] (owned; NULL: none) of the outputs out from those of the inputs, v (NULL: none). NULL: it has none of
   * its own, they are found from bwd. */
  PlStatus (*jvp)(void *ud, PlNode *node, PlTensor *const *v, PlTensor *const *out, PlTensor **t);
  void (*drop)(void *ud);
  void *ud;
  bool always;        /* runs also when no gradient arrives */
  const bool *inside; /* per output, or NULL: the rule itself uses it further, so its whole gradient is seen by nobody */
  bool again;         /* a checkpoint may drop it and have it made once more */
  int kept;           /* for the embedding program: what of its own the rule keeps alive */
  uint32_t piece;     /* bytes of the pooled piece that begins with this; 0: malloc made it */
} PlRule;

typedef struct PlEdge {
  PlNode *node; /* strong; NULL: no gradient goes there */
  uint32_t slot;
} PlEdge;

typedef struct PlSlot {
  PlTensor *grad;  /* sum so far */
  PlTensor *shape; /* a zero expanded to the output's shape; only for nodes with several outputs */
  PlHook *hooks;
  uint32_t capture; /* 1 + position in the running grad_of's results */
} PlSlot;

typedef struct PlPacking PlPacking;
typedef struct PlSaved {
  PlTensor *t; /* NULL: packed (saved_tensors_hooks.h), left to a checkpoint, or freed */
  union {
    struct {
      uint32_t version;
      int32_t relink; /* ≥ 0: an alias of this output; linked to its slot when the key records its own backward */
    };
    struct PlSavedPacked *packed; /* t is NULL; NULL: left to a checkpoint, or freed */
  };
} PlSaved;
typedef struct PlSavedPacked {
  struct PlPacked *value;
  int32_t relink;
} PlSavedPacked;

/* TANGENT: of a forward key (forward_mode.h); `grad` is the tangent, NULL where nobody knows it. */
typedef enum PlNodeKind { PL_NODE_LEAF, PL_NODE_IDENTITY, PL_NODE_NATIVE, PL_NODE_GRAPH, PL_NODE_RULE, PL_NODE_TANGENT } PlNodeKind;

struct PlNode {
  uint32_t refs;
  uint8_t kind;
  bool spent;  /* its saved tensors have been freed: backward ran without retain_graph */
  bool hooked; /* some slot has hooks, or had */
  bool skip;   /* where a backward for chosen inputs begins, and no way leads from here to one of them */
  bool ends;   /* the same, of several results: some are among the inputs, and from here no way leads on to others */
  bool busy;   /* on the list of a running backward */
  bool shared; /* a kept cast (engine/call/autocast.c): a backward leaves it whole for the next */
  bool torn;   /* leaf: a backward that failed had added to .grad, if that is as it left it (leaf_sums.c) */
  uint32_t nin, nout, nsaved;
  int32_t pending; /* consumers that have not delivered yet; valid while `pass` is the running one */
  union {
    uint32_t checkpoint_at; /* which of its checkpoint's nodes it is */
    uint32_t torn_at;       /* leaf: the version of .grad's memory when it became torn */
  };
  uint64_t pass;
  uint64_t seq;
  PlKey *key;                      /* weak: NULL once the key is freed */
  PlNode *prev, *next;             /* the key's tape */
  PlNode *link;                    /* worklists: release, walk */
  struct PlCheckpoint *checkpoint; /* strong: makes what the node lacks (checkpoint.h); NULL: it lacks nothing */
  const PlOp *op;                  /* NULL for leaves, identities and custom rules */
  const char *name;
  union {
    PlTensor *target; /* leaf, identity: the tensor it was made for, weak */
    struct PlBackward *graph;
    struct {
      PlAttrs *attrs; /* compact copy or NULL */
      uint8_t saved;  /* bit i: input i is saved */
    } native;
    PlRule *rule;
  } u;
  PlTensor *grad; /* leaf of the ambient key: .grad */
  PlEdge *dests;  /* nin */
  PlSlot *slots;  /* nout */
  PlSaved *saved; /* nsaved */
};

struct PlKey {
  uint32_t refs;
  int level;
  bool active;    /* not finalized */
  bool recording; /* false while this key's own rules run, or paused */
  bool mutes_ambient;
  bool is_ambient;
  bool forward;    /* its entries lead to tangents (forward_mode.h) */
  bool walking;    /* its backward runs: closing waits for the end … */
  bool closed;     /* … but no callback runs any more */
  bool has_always; /* some rule on the tape runs without gradients */
  bool away;       /* a coroutine recorded with it that does not run now: `owner` */
  uint32_t muted;  /* running walks that this key must not record */
  uint64_t born;   /* keys made inside a walk are not muted by it */
  uint64_t owner;  /* the embedding program's number of the coroutine whose ops alone it records; 0: of all */
  char name[64];
  PlNode tape; /* list head: prev/next only */
  PlKey *next; /* pl_state.keys */
};

/* ---- nodes ---- */
PlStatus pl_node_new(PlNode **out, PlKey *key, PlNodeKind kind, uint32_t nin, uint32_t nout, uint32_t nsaved);
/* y, which has no entries yet, gets one: its tangent under key, which is taken. */
PlStatus pl_node_tangent(PlTensor *y, PlKey *key, const char *name, PlTensor *tangent);
void pl_node_release(PlNode *n); /* iterative: chains of any depth */
/* Frees saved tensors, rule and edges; the node object stays until its last reference. */
void pl_node_clear(PlNode *n);
void pl_node_drop_rule(PlNode *n);                                   /* the rule alone */
void pl_node_link(PlNode *n, uint32_t i, PlNode *to, uint32_t slot); /* dests[i] := (to, slot) */

/* ---- entries of tensors ---- */
bool pl_entry_get(const PlTensor *t, const PlKey *key, PlNode **node, uint32_t *slot);
PlStatus pl_entry_set(PlTensor *t, PlNode *node, uint32_t slot); /* replaces the key's entry */
void pl_entry_remove(PlTensor *t, const PlKey *key);
/* Copies entries of all keys (but `except`) from one handle to another. */
PlStatus pl_entries_copy(PlTensor *to, const PlTensor *from, const PlKey *except);
void pl_entries_move(PlTensor *to, PlTensor *from);
/* True if some key that may record now tracks t; drops entries of finalized keys on the way. */
bool pl_tracked(PlTensor *t);

/* ---- recording (record.c) ---- */
PlStatus pl_record(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs, PlTensor **out);
/* Records a rule of the embedding program on every key that tracks an input. Outputs must be fresh handles.
 * differentiable[o] may be NULL (all floating outputs). make is called once per node for its rule data. */
typedef struct PlRuleSaved { /* what the rule's backward gets by pl_saved_get */
  PlTensor *const *t;
  const uint32_t *version; /* of their memory when they were saved */
  int n;
} PlRuleSaved;
PlStatus pl_record_rule(PlTensor *const *in, int nin, PlTensor *const *out, int nout, const bool *differentiable, const PlRuleSaved *saved,
                        const char *name, PlRule *(*make)(void *ctx, PlNode *node), void *ctx);
/* Lets a rule's node have what it saved; out are its results. */
PlStatus pl_rule_save(PlNode *n, const PlRuleSaved *saved, PlTensor *const *out, int nout);
/* pl_record_rule on one key, which tracks some inputs. */
PlStatus pl_record_rule_on(PlKey *key, PlTensor *const *in, int nin, PlTensor *const *out, int nout, const bool *differentiable,
                           const PlRuleSaved *saved, const char *name, PlRule *(*make)(void *ctx, PlNode *node), void *ctx);
/* May this key record now? */
static inline bool pl_key_records(const PlKey *k) {
  return k && k->active &&
         ((k->recording && !k->away && !k->muted && !(k->is_ambient && pl_state.ambient_muted) && k->born >= pl_state.key_floor &&
           k->born < ~pl_state.key_ceiling) ||
          pl_state.bookkeeping);
}
/* A view whose family was written since its entries were made. */
static inline bool pl_history_old(const PlTensor *t) { return t->base && t->history != t->base->history; }
/* Would an op on these inputs be recorded? Cheap: the hot path asks this. */
static inline bool pl_may_record(PlTensor *const *in, int nin) {
  for (int i = 0; i < nin; i++)
    if (in[i] && ((in[i]->node && pl_key_records(in[i]->node->key)) || in[i]->more || (pl_state.history_moved && pl_history_old(in[i]))))
      return true;
  return false;
}

/* ---- in-place ops (inplace.c) ---- */
/* Refuses leaves that require a gradient, and views of them. */
PlStatus pl_inplace_check(const char *op, const PlTensor *t);
/* That refusal: t, or what it is a view of, is a leaf, or stands in a trace for what has its history outside of it. */
PlStatus pl_inplace_leaf(const char *op, const PlTensor *t, bool view);
/* t's contents were replaced; fresh (same shape and dtype) carries the history of the new ones. */
PlStatus pl_inplace_install(PlTensor *t, PlTensor *fresh);
/* to's entries := those of from, which loses them where nobody else holds it; nodes that saved either keep what they saw. */
PlStatus pl_history_move(PlTensor *to, PlTensor *from);
/* For a rule to keep: t under a handle that no later in-place op gives another history. Its own one would make a cycle with
 * what is recorded when a result is written into t. */
PlStatus pl_history_alias(PlTensor **out, PlTensor *t);
/* t has no history any more, and is no view; a leaf keeps what it has where it requires no gradient. */
PlStatus pl_history_drop(PlTensor *t);
/* Has t nothing but a leaf that requires no gradient any more? Then nothing tracks it, though it has a node. */
bool pl_leaf_rests(const PlTensor *t);
/* Brings a view's history up to date after in-place ops through other handles. */
PlStatus pl_history_refresh(PlTensor *t);
/* The same for the tensors that a call reads: before anyone looks at their entries. */
static inline PlStatus pl_history_current(PlTensor *const *t, int n) {
  for (int i = 0; pl_state.history_moved && i < n; i++)
    if (t[i] && ((t[i]->flags & PL_T_FOREIGN) || pl_history_old(t[i]))) PL_TRY(pl_history_refresh(t[i]));
  return PL_OK;
}

/* ---- keys (key.c) ---- */
PlKey *pl_key_ambient(void);
PlStatus pl_key_new(PlKey **out, const char *name_or_null, int level, bool mutes_ambient);
PlStatus pl_key_rename(PlKey *k, const char *name);
void pl_key_retain(PlKey *k);
void pl_key_release(PlKey *k);
void pl_key_close(PlKey *k); /* finalizes: clears the tape */
void pl_key_away(PlKey *k, bool away);
PlStatus pl_key_attach(PlKey *k, PlTensor *t, PlHook *callback_or_null);
int pl_key_top_level(void);
PlStatus pl_key_backward(PlKey *k, PlTensor *const *ys, PlTensor *const *dys, int n, bool strict);
/* Refuses where the gradient at this place of a node is only a part of the tensor's. */
PlStatus pl_slot_whole(const char *what, const PlNode *n, uint32_t slot);
/* Hooks that follow t go from a node to the one that t has now. */
void pl_hooks_follow(const PlTensor *t, PlNode *from, uint32_t slot);
PlStatus pl_add_hook(PlTensor *t, PlHook *hook); /* refuses PL_HOOK_ACCUMULATED on what is no leaf */
void pl_hooks_drop(PlNode *n);
/* Gradients of ys for xs through k (out[i] owned, NULL: no path). k stays usable, its own walk is not recorded by
 * it but by every other key. dys NULL: ones. */
PlStatus pl_key_pull(PlKey *k, PlTensor *const *ys, PlTensor *const *dys, int ny, PlTensor *const *xs, int nx, PlTensor **out);
/* .grad += g, then the leaf's last hooks. Gives t a place for .grad if it is no leaf that requires a gradient. */
PlStatus pl_grad_add(PlTensor *t, PlTensor *g);
PlStatus pl_leaf_take_grad(PlNode *leaf, PlTensor *g); /* takes g */
bool pl_leaf_torn(const PlNode *leaf);                 /* pl_grad_torn */
void pl_leaf_tear(PlNode *leaf);                       /* .grad is torn as it is now, if there is one */
void pl_grad_tear(const PlTensor *t);
/* .grad is complete: the leaf's last hooks. */
PlStatus pl_leaf_accumulated(PlNode *leaf);
/* `to`, fresh and without a history, takes over the leaf (and the keys' entries) of `from`, for good (leaf_move.c). */
PlStatus pl_leaf_rehome(PlTensor *to, PlTensor *from);
/* ---- backward (node_backward.c) ---- */
/* Makes the tensor a slot's rule would read, with version check. Owned. */
PlStatus pl_saved_get(PlNode *n, uint32_t i, PlTensor **out);

#endif
