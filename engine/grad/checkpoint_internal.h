/* SPDX-License-Identifier: MIT
 * What the files of a checkpoint share: checkpoint.c (its life, nodes, running again), checkpoint_log.c (what the function
 * did: calls, reads, writes), checkpoint_graph.c (a compiled graph among them), checkpoint_modes.c (modes that ops depend on). */
#ifndef PL_ENGINE_GRAD_CHECKPOINT_INTERNAL_H
#define PL_ENGINE_GRAD_CHECKPOINT_INTERNAL_H

#include <string.h>

#include "engine/call/thread_state.h"
#include "engine/grad/checkpoint.h"

/* One op that the function called: what with (op, attributes, types, numbers), and on which tensors. */
typedef struct PlCkCall {
  const char *name;
  uint32_t what;
  uint32_t which : 31, failed : 1; /* failed: it raised, or was called again for want of memory */
} PlCkCall;

/* One node that it recorded; node is NULL once that is cleared. */
typedef struct PlCkNode {
  PlNode *node; /* weak: the node forgets itself */
  const char *name;
  uint64_t born;      /* of its key; 0: the ambient one */
  PlCheckpoint *from; /* strong: the one around, in whose second run this one came to be, and the node's place there */
  size_t from_at;
} PlCkNode;

/* Memory from outside as it was before the function first wrote to it. While the function runs again it is there, and
 * `now` holds what it replaced. */
typedef struct PlCkWritten {
  PlTensor *bytes, *now;
  uint32_t version_now;
} PlCkWritten;

/* Memory from outside that the function read or wrote. */
typedef struct PlCkOutside {
  PlTensor *t;      /* an alias without history: holds the memory, describes it */
  const char *by;   /* the op that first met it */
  uint32_t version; /* then */
  uint32_t again;   /* when the function began to run again */
  bool lost;        /* changed by something that no op knows of */
  PlCkWritten *written;
} PlCkOutside;

typedef struct PlCkCast {
  PlTensor *leaf, *cast;
} PlCkCast;

/* A tensor from outside whose requires_grad the second run has changed: what it was. */
typedef struct PlCkSwitch {
  PlTensor *t;
  bool was;
} PlCkSwitch;

/* Results of one kernel that are kept. */
typedef struct PlCkKept {
  size_t kernel;
  uint64_t draws;            /* how many random counters it took */
  PlTensor *out[PL_MAX_OUT]; /* aliases without history */
  uint32_t version[PL_MAX_OUT];
  uint64_t stamp[PL_MAX_OUT]; /* while they are handed out: what they had */
  bool given, overwritten;    /* copies: the function writes over its own */
} PlCkKept;

/* Which kernel made the memory of that stamp. */
typedef struct PlCkTrace {
  uint64_t stamp, draws;
  size_t kernel;
} PlCkTrace;

/* What ops look at beside their inputs. */
typedef struct PlCkKey {
  uint64_t born;
  bool active, recording;
  uint32_t muted;
} PlCkKey;
typedef struct PlCkModes {
  PlModes thread;
  uint64_t seed, stream, offset;
  bool seeded;
  int ambient_muted; /* as the keys are set, too (pl_ck_keys_set) */
  PlDtype floating;
  int precision;
  int settings; /* of the device plug-in, one bit each; -1: not asked */
} PlCkModes;

struct PlCheckpoint {
  uint32_t refs;
  bool replaying, failed;
  bool complete, stopped; /* all that is needed is there; so the next op has failed */
  PlCheckpoint *outer;    /* while on the stack pl_state.checkpoint */
  uint64_t first, base;   /* memory with a stamp from here on was made inside: in forward; in the run that goes on */
  uint64_t keys_born;     /* keys born later were made inside */
  uint64_t seq;           /* nodes with a larger number were made in the run that goes on */
  PlRerun rerun;
  PlTensor **args; /* aliases of the arguments with their histories of then; behind them those of bases of views */
  int nargs, nheld;
  int *family;      /* of each argument that is a view: where its base is in args; -1: it is none */
  int *same;        /* per argument: the first one that is the same tensor */
  PlTensor **roots; /* while the function runs: the tensors themselves, or what represents them, weak */
  PlCkCall *calls;
  size_t ncalls, calls_cap, call;
  PlCkNode *nodes;
  size_t nnodes, nodes_cap, node;
  PlCkOutside *outside;
  size_t noutside, outside_cap;
  uint32_t *places; /* open addressing by address of the storage: 1 + position in `outside` */
  size_t nplaces;
  PlCkCast *casts;
  size_t ncasts, casts_cap;
  PlCkSwitch *switches;
  size_t nswitches, switches_cap;
  size_t kernel;               /* how many have run */
  size_t mark[5];              /* when the op began: calls, call, nodes, node, kernel */
  uint64_t offset, made_draws; /* before the last one; what it took */
  const PlStorage *made;       /* its only result */
  PlCkKept *kept;              /* in order */
  size_t nkept, kept_cap;
  PlCkTrace *traces; /* in order; only if values may be named */
  size_t ntraces, traces_cap;
  PlCkModes modes;
  PlCkKey *keys; /* the ambient one, then those alive at the beginning */
  size_t nkeys;
  int64_t pending; /* what the running walk needs and has not got yet */
};

static inline bool pl_ck_old(const PlCheckpoint *c, const PlKey *k) { return k->born < c->keys_born; }

/* ---- hashes ---- */
static inline uint64_t pl_ck_mix(uint64_t h, uint64_t v) { /* the multiplier of 64-bit FNV, with the high bits folded in */
  h = (h ^ v) * 0x100000001b3ULL;
  return h ^ h >> 29;
}

static inline uint64_t pl_ck_mix_bytes(uint64_t h, const void *data, size_t n) {
  const char *p = data;
  uint64_t v = 0;
  for (; n >= sizeof v; n -= sizeof v, p += sizeof v) {
    memcpy(&v, p, sizeof v);
    h = pl_ck_mix(h, v);
  }
  v = n;
  if (n) memcpy(&v, p, n);
  return pl_ck_mix(h, v);
}

/* Dtype and sizes, and a number's value. */
static inline void pl_ck_mix_tensor(uint64_t *h, const PlTensor *t) {
  const PlArray *a = &t->a;
  *h = pl_ck_mix(*h, (uint64_t)a->dtype | (uint64_t)a->ndim << 8 | (uint64_t)a->weak << 16 | (uint64_t)a->device << 24);
  for (int d = 0; d < a->ndim; d++) *h = pl_ck_mix(*h, (uint64_t)a->shape[d]);
  if (a->weak) *h = pl_ck_mix_bytes(*h, a->data, a->numel == 1 ? pl_dtype_size((PlDtype)a->dtype) : 0);
}

static inline bool pl_ck_among(PlTensor *const *list, int n, const PlTensor *t) {
  for (int i = 0; i < n; i++)
    if (list[i] == t) return true;
  return false;
}

/* ---- checkpoint_log.c ---- */
PlCkOutside *pl_ck_find(const PlCheckpoint *c, const PlStorage *st);
/* Was this memory made inside? What c once met as memory from outside remains that, though a write for a checkpoint around, inside of
 * which it was made, gives it a new stamp. */
static inline bool pl_ck_inside(const PlCheckpoint *c, const PlStorage *st) { return st->stamp >= c->base && !pl_ck_find(c, st); }
/* Of any function that runs: stamps are moved for all of them alike, since in forward the ones within were nothing. */
bool pl_ck_inside_any(const PlStorage *st);
void pl_ck_log_free(PlCheckpoint *c);
/* Memory that the function wrote to holds what it did at the first run's beginning; and then, again, what it did before. */
PlStatus pl_ck_put_back(PlCheckpoint *c);
PlStatus pl_ck_put_forth(PlCheckpoint *c);
int pl_ck_arg_of(const PlCheckpoint *c, const PlStorage *st); /* which argument has this memory, or -1 */
PlStatus pl_ck_grow(void *list, size_t n, size_t *cap, size_t size);

/* ---- checkpoint_selective.c ---- */
PlStatus pl_ck_part_kept(PlCheckpoint *c, PlStorage *st);
PlStatus pl_ck_note_made(PlCheckpoint *c, const PlTensor *t);
void pl_ck_kept_back(PlCheckpoint *c);               /* the second run is over */
void pl_ck_kept_cut(PlCheckpoint *c, size_t kernel); /* forward keeps nothing of this kernel and those behind */
void pl_ck_kept_free(PlCheckpoint *c);

/* ---- checkpoint_modes.c ---- */
void pl_ck_modes_read(PlCkModes *m);
void pl_ck_modes_set(const PlCkModes *m);
PlStatus pl_ck_keys_read(PlCheckpoint *c);
/* Lets keys record as they did then; what they did before goes to *was, for the second function. */
typedef struct PlCkKeysWas PlCkKeysWas;
PlStatus pl_ck_keys_set(const PlCheckpoint *c, PlCkKeysWas **was);
void pl_ck_keys_back(PlCkKeysWas *was);
bool pl_ck_key_runs(const PlCheckpoint *c, uint64_t born);

#endif
