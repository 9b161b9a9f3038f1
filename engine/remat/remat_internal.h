/* SPDX-License-Identifier: MIT
 * What the files of this folder share. A value is what a storage holds between two writes. It is live (a storage that
 * others have handles on), or held (a storage of its own: computed again for others, or the last copy of something), or
 * dead (no storage; only its recipe is left). A live value is in memory, or evicted. Recipes point to the values that they
 * read; a value lives as long as it has a storage or readers. */
#ifndef PL_ENGINE_REMAT_REMAT_INTERNAL_H
#define PL_ENGINE_REMAT_REMAT_INTERNAL_H

#include "engine/remat/remat.h"

typedef struct Recipe Recipe;

/* An input of a recipe: a window on a value, or on a few bytes kept here. */
typedef struct Read {
  PlValue *of; /* NULL: the bytes are in `few`; or there is no input */
  Recipe *by;
  struct Read *next, **at; /* of's readers */
  int64_t offset;          /* bytes from the storage's begin */
  int64_t *dims;           /* shape, then strides */
  uint8_t dtype, ndim, weak;
  uint8_t nfew; /* bytes in `few` */
  bool given;
  bool pinned; /* by the recipe that is being run, or will be */
  _Alignas(16) unsigned char few[PL_SMALL];
} Read;

typedef struct Result {
  PlValue *value; /* weak; NULL: freed, or too small to be noted */
  int64_t *shape; /* strides behind it */
  uint8_t dtype, ndim;
  bool given;
} Result;

struct Recipe {
  uint32_t refs; /* results that are values */
  uint32_t piece;
  const PlOp *op;
  PlAttrs *attrs; /* inside this piece; NULL: none */
  PlDrawn drawn;
  int precision;
  int nin;
  double cost;
  Read *in;
  Result *out; /* op->nout */
};

struct PlValue {
  PlStorage *storage; /* NULL: dead */
  Recipe *recipe;     /* NULL: it cannot be computed again */
  Read *readers;
  PlTensor *handles;    /* those with PL_T_LISTED; the embedded one is found through the storage */
  PlValue *prev, *next; /* in one of the rings of PlRematState; NULL: in none */
  PlValue *link;        /* worklists: of values that were reached in this pass */
  uint64_t pass;
  double used; /* on rs->clock, when it was used last */
  size_t bytes;
  uint32_t pins;
  uint16_t out; /* which result of its recipe */
  uint8_t was;  /* the storage's `owns` */
  bool held, evicted, orphan;
};

struct PlRematState {
  int64_t limit;
  size_t worth; /* values of fewer bytes are not worth evicting */
  double clock; /* cost of all ops so far */
  uint64_t pass;
  PlValue lru;      /* head of the ring of what may be evicted */
  PlValue away;     /* and of that of live values that are */
  PlValue *orphans; /* to be freed */
  const char *op;   /* that is being run */
  int replaying;
  bool draining;
  bool always; /* tests: everything is evicted before every op */
  PlRematStats stats;
};
typedef struct PlRematState PlRematState;

static inline PlRematState *remat(void) { return pl_state.remat; }
static inline bool is_resident(const PlValue *v) { return v->storage && !v->evicted; }
static inline bool is_live(const PlValue *v) { return v->storage && !v->held; }

/* cost.c */
double remat_cost(const PlCall *c, PlTensor *const *out);
double remat_estimate(PlValue *v);

/* values.c */
void remat_recipe_release(Recipe *r);
PlValue *remat_value_new(PlStorage *s);
void remat_lru_add(PlValue *v);          /* most recently used */
void remat_move(PlValue *v, void *data); /* the storage, and all handles on it, point there now */
void remat_lru_remove(PlValue *v);
void remat_touch(PlValue *v);
void remat_drop_recipe(PlValue *v); /* it stays in memory from now on */
/* Frees v, and what only it needed, where nobody has it any more. */
void remat_check(PlValue *v);
void remat_let_go(PlValue *v); /* the storage is an ordinary one again */

/* evict.c */
void remat_evict(PlValue *v);
/* replay.c */
PlStatus remat_bring(PlValue *v);
/* write.c */
bool remat_cut(PlValue *v);

#endif
