/* SPDX-License-Identifier: MIT
 * Backward graphs of single ops: the emitters that gradient makers call, the making of a graph from a call,
 * and the cache. A cache entry is compared in full; entries die with the thread. */
#include <stdlib.h>
#include <string.h>

#include "engine/grad/graph.h"

/* ---- emitters -------------------------------------------------------------------------------------- */

void pl_g_fail(PlMaker *g, PlStatus s) {
  if (g->status == PL_OK) g->status = s;
}

PlVal pl_g_op(PlMaker *g, const PlOp *op, int nin, const PlVal *in, const PlAttrs *attrs, PlVal *outs) {
  if (g->status != PL_OK) return PL_NONE;
  PlVal first;
  pl_g_fail(g, pl_graph_add(g->graph, op, nin, in, attrs, &first));
  if (g->status != PL_OK) return PL_NONE;
  for (int o = 0; outs && o < op->nout; o++) outs[o] = first + o;
  return first;
}

PlVal pl_g1(PlMaker *g, const PlOp *op, PlVal a) { return pl_g_op(g, op, 1, &a, NULL, NULL); }

PlVal pl_g2(PlMaker *g, const PlOp *op, PlVal a, PlVal b) {
  PlVal in[2] = {a, b};
  return pl_g_op(g, op, 2, in, NULL, NULL);
}

PlVal pl_g3(PlMaker *g, const PlOp *op, PlVal a, PlVal b, PlVal c) {
  PlVal in[3] = {a, b, c};
  return pl_g_op(g, op, 3, in, NULL, NULL);
}

PlVal pl_g_num(PlMaker *g, double v) {
  PlTensor *t;
  PlVal out = PL_NONE;
  if (g->status != PL_OK) return PL_NONE;
  bool whole = v > -1e15 && v < 1e15 && v == (double)(int64_t)v;
  pl_g_fail(g, pl_tensor_number(&t, whole, whole ? (int64_t)v : 0, v));
  if (g->status != PL_OK) return PL_NONE;
  pl_g_fail(g, pl_graph_const(g->graph, t, &out));
  pl_tensor_release(t);
  return out;
}

static bool poly(const PlMaker *g) { return (g->op->flags & PL_F_POLY) != 0; }

/* op(v; shape) with the sizes of input i as an attribute: position `at` of the op's table is a list. */
static PlVal with_sizes(PlMaker *g, const PlOp *op, int nin, const PlVal *in, int at, int i) {
  PlAttrs a;
  pl_attrs_init(op, &a);
  pl_g_fail(g, pl_attrs_list(&a, at, g->in[i]->ndim, g->in[i]->shape));
  return pl_g_op(g, op, nin, in, &a, NULL);
}

PlVal pl_g_sum_to(PlMaker *g, PlVal dy, int i) {
  if (g->same[i]) return dy;
  if (poly(g)) return pl_g2(g, &pl_op_sum_to, dy, pl_g1(g, &pl_op_shape_of, g->x[i]));
  PlVal in[2] = {dy, PL_NONE};
  return with_sizes(g, &pl_op_sum_to, 2, in, 0, i);
}

PlVal pl_g_zeros_like(PlMaker *g, int i) {
  PlAttrs a;
  pl_attrs_init(&pl_op_zeros_of, &a);
  pl_attrs_int(&a, 0, g->in[i]->dtype);
  PlVal shape = pl_g1(g, &pl_op_shape_of, g->x[i]);
  return pl_g_op(g, &pl_op_zeros_of, 1, &shape, &a, NULL);
}

PlVal pl_g_expand_like(PlMaker *g, PlVal v, int i) {
  if (!poly(g)) return with_sizes(g, &pl_op_expand, 1, &v, 0, i);
  return pl_g2(g, &pl_op_expand_to, v, pl_g1(g, &pl_op_shape_of, g->x[i]));
}

PlVal pl_g_reshape_like(PlMaker *g, PlVal v, int i) {
  if (!poly(g)) return with_sizes(g, &pl_op_reshape, 1, &v, 0, i);
  return pl_g2(g, &pl_op_reshape_to, v, pl_g1(g, &pl_op_shape_of, g->x[i]));
}

PlVal pl_g_cast(PlMaker *g, PlVal v, PlDtype d) {
  PlAttrs a;
  pl_attrs_init(&pl_op_cast, &a);
  pl_attrs_int(&a, 0, d);
  return pl_g_op(g, &pl_op_cast, 1, &v, &a, NULL);
}

/* ---- making ----------------------------------------------------------------------------------------- */

void pl_backward_graph_release(PlBackward *b) {
  if (!b || --b->refs) return;
  pl_graph_free(b->precomp);
  pl_graph_free(b->backward);
  free(b->save);
  free(b);
}

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory for a gradient graph"); }

/* Runs the maker; *g receives the graph over [inputs | outputs | dys] whose results are the gradients that
 * exist, has_grad says of which inputs. */
static PlStatus emit(const PlMakeArgs *a, PlGraph **out, uint8_t *has_grad) {
  int nin = a->nin, nout = a->op->nout;
  size_t n = (size_t)(2 * nin + 2 * nout);
  PlVal *vals = malloc(n * sizeof *vals);
  PlGraph *g = NULL;
  if (!vals) return no_memory();
  PlStatus s = pl_graph_new(&g, nin + 2 * nout);
  PlVal *x = vals, *dx = vals + nin, *y = dx + nin, *dy = y + nout;
  for (int i = 0; i < nin; i++) {
    x[i] = a->in[i] ? i : PL_NONE;
    dx[i] = PL_NONE;
  }
  for (int o = 0; o < nout; o++) {
    y[o] = nin + o;
    dy[o] = a->dy_given[o] ? nin + nout + o : PL_NONE;
  }
  if (s == PL_OK) {
    PlMaker m = {.graph = g, .op = a->op, .attrs = a->attrs, .nin = nin, .nout = nout, .in = a->in,
                 .outd = a->outd, .want = a->want, .same = a->same, .x = x, .y = y, .dy = dy, .dx = dx};
    s = a->op->grad(&m);
    if (s == PL_OK) s = m.status;
  }
  int k = 0;
  for (int i = 0; i < nin; i++) {
    has_grad[i] = a->want[i] && dx[i] != PL_NONE;
    if (has_grad[i]) dx[k++] = dx[i];
  }
  if (s == PL_OK) s = pl_graph_results(g, k, dx);
  free(vals);
  if (s != PL_OK) {
    pl_graph_free(g);
    return s;
  }
  *out = g;
  return PL_OK;
}

PlStatus pl_gradient_graph_make(const PlMakeArgs *a, PlGraph **out, uint8_t *has_grad) {
  PlGraph *g;
  PL_TRY(emit(a, &g, has_grad));
  PlStatus s = pl_graph_optimize(&g);
  if (s != PL_OK) {
    pl_graph_free(g);
    return s;
  }
  *out = g;
  return PL_OK;
}

PlStatus pl_backward_graph_make(const PlMakeArgs *a, PlBackward **out, PlGraph **unsplit) {
  int nin = a->nin, nout = a->op->nout;
  PlBackward *b = calloc(1, sizeof *b);
  uint8_t *masks = calloc((size_t)(2 * nin + 2 * nout) + 1, 1);
  PlGraph *g = NULL;
  PlStatus s = b && masks ? PL_OK : no_memory();
  if (s != PL_OK) {
    free(b);
    free(masks);
    return s;
  }
  *b = (PlBackward){.refs = 1, .nin = nin, .nout = nout, .save = masks, .has_grad = masks + nin + 2 * nout};
  s = emit(a, &g, b->has_grad);
  if (s == PL_OK && g->nresults == 0) { /* not differentiable */
    pl_graph_free(g);
    pl_backward_graph_release(b);
    *out = NULL;
    return PL_OK;
  }
  if (s == PL_OK) s = pl_graph_optimize(&g);
  if (s == PL_OK) s = pl_backward_graph_split(g, a, b);
  if (s != PL_OK) {
    pl_graph_free(g);
    pl_backward_graph_release(b);
    return s;
  }
  if (unsplit)
    *unsplit = g;
  else
    pl_graph_free(g);
  *out = b;
  return PL_OK;
}

/* ---- the cache ---------------------------------------------------------------------------------------- */

enum { KEY_MAX = 1536, PER_OP = 64 };

typedef struct CacheEntry {
  struct CacheEntry *next;
  PlBackward *graph; /* NULL: known to have no gradient */
  uint64_t hash;
  size_t size;
  unsigned char key[];
} CacheEntry;

/* Per thread, as tensors are; at most PER_OP entries an op, least recently used go first. */
static _Thread_local CacheEntry **cache; /* PL_NOP lists */
static _Thread_local int64_t n_hits, n_misses, n_entries;

typedef struct KeyBuf {
  size_t n;
  bool over;
  _Alignas(8) unsigned char b[KEY_MAX];
} KeyBuf;

static void put(KeyBuf *k, const void *p, size_t n) {
  if (k->n + n > KEY_MAX) {
    k->over = true;
    return;
  }
  memcpy(k->b + k->n, p, n);
  k->n += n;
}

static void make_key(KeyBuf *k, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs,
                     PlTensor *const *out, const bool *want, const bool *same) {
  k->n = 0;
  k->over = false;
  uint32_t head = (uint32_t)nin;
  put(k, &head, sizeof head);
  for (int i = 0; i < nin; i++) {
    const PlTensor *t = in[i];
    unsigned char d[4] = {0, 0, 0, 0};
    if (t) {
      d[0] = (unsigned char)(1 + t->a.dtype);
      d[1] = t->a.ndim;
      d[2] = t->a.device;
      d[3] = (unsigned char)(want[i] | same[i] << 1 | t->a.weak << 2);
    }
    put(k, d, sizeof d);
    if (t && !(op->flags & PL_F_POLY)) put(k, t->a.shape, t->a.ndim * sizeof(int64_t));
  }
  unsigned char dt = out[0] ? out[0]->a.dtype : 0;
  put(k, &dt, 1);
  if (attrs && op->nattr) put(k, attrs, pl_attrs_size(attrs));
}

static uint64_t hash_bytes(const unsigned char *p, size_t n) {
  uint64_t h = 0xcbf29ce484222325u ^ n; /* FNV-1a over words */
  uint64_t w;
  for (; n >= 8; n -= 8, p += 8) {
    memcpy(&w, p, 8);
    h = (h ^ w) * 0x100000001b3u;
    h ^= h >> 29;
  }
  for (; n; n--) h = (h ^ *p++) * 0x100000001b3u;
  return h;
}

static void drop_entry(CacheEntry *e) {
  pl_backward_graph_release(e->graph);
  free(e);
  n_entries--;
}

/* True and *out set when found; the entry moves to the front. */
static bool lookup(int id, const KeyBuf *k, uint64_t hash, PlBackward **out) {
  CacheEntry **p = &cache[id];
  for (int n = 0; *p; p = &(*p)->next, n++) {
    CacheEntry *e = *p;
    if (e->hash == hash && e->size == k->n && memcmp(e->key, k->b, k->n) == 0) {
      *p = e->next;
      e->next = cache[id];
      cache[id] = e;
      *out = e->graph;
      return true;
    }
    if (n >= PER_OP) { /* what lies behind has not been used for long */
      CacheEntry *rest = e->next;
      e->next = NULL;
      while (rest) {
        CacheEntry *next = rest->next;
        drop_entry(rest);
        rest = next;
      }
    }
  }
  return false;
}

static void insert(int id, const KeyBuf *k, uint64_t hash, PlBackward *b) {
  CacheEntry *e = malloc(sizeof *e + k->n);
  if (!e) return; /* the graph is merely not cached */
  *e = (CacheEntry){.next = cache[id], .graph = b, .hash = hash, .size = k->n};
  memcpy(e->key, k->b, k->n);
  if (b) b->refs++;
  cache[id] = e;
  n_entries++;
}

static void desc_of(PlDesc *d, const PlTensor *t) {
  if (!t) return;
  pl_desc_set(d, (PlDtype)t->a.dtype, t->a.ndim, t->a.shape);
}

PlStatus pl_backward_graph_get(const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *attrs,
                               PlTensor *const *out, const bool *want, PlBackward **result) {
  bool few_same[PL_MAX_IN], *same = few_same;
  if (nin > PL_MAX_IN && !(same = malloc((size_t)nin * sizeof *same))) return no_memory();
  for (int i = 0; i < nin; i++) same[i] = in[i] && out[0] && pl_shape_equal(&in[i]->a, &out[0]->a);
  KeyBuf k;
  make_key(&k, op, in, nin, attrs, out, want, same);
  uint64_t hash = hash_bytes(k.b, k.n);
  int id = pl_op_id(op);
  PlStatus s = PL_OK;
  if (!cache && !(cache = calloc(PL_NOP, sizeof *cache))) s = no_memory();
  if (s == PL_OK && !k.over && lookup(id, &k, hash, result)) {
    n_hits++;
    if (*result) (*result)->refs++;
  } else if (s == PL_OK) {
    n_misses++;
    PlDesc outd[PL_MAX_OUT];
    bool given[PL_MAX_OUT];
    memset(outd, 0, sizeof outd); /* absent outputs have none */
    for (int o = 0; o < op->nout; o++) {
      desc_of(&outd[o], out[o]);
      given[o] = out[o] && pl_is_float((PlDtype)out[o]->a.dtype);
    }
    const PlArray *few[PL_MAX_IN], **arr = few;
    if (nin > PL_MAX_IN && !(arr = malloc((size_t)nin * sizeof *arr))) s = no_memory();
    for (int i = 0; s == PL_OK && i < nin; i++) arr[i] = in[i] ? &in[i]->a : NULL;
    PlMakeArgs a = {op, nin, arr, attrs, outd, want, given, same};
    if (s == PL_OK) s = pl_backward_graph_make(&a, result, NULL);
    if (s == PL_OK && !k.over) insert(id, &k, hash, *result);
    if (arr != few) free((void *)arr);
  }
  if (same != few_same) free(same);
  return s;
}

void pl_backward_cache_stats(int64_t *hits, int64_t *misses, int64_t *entries) {
  *hits = n_hits;
  *misses = n_misses;
  *entries = n_entries;
}

void pl_backward_cache_end(void) {
  pl_backward_cache_clear();
  free(cache);
  cache = NULL;
}

void pl_backward_cache_clear(void) {
  for (int i = 0; cache && i < PL_NOP; i++)
    while (cache[i]) {
      CacheEntry *e = cache[i];
      cache[i] = e->next;
      drop_entry(e);
    }
}
