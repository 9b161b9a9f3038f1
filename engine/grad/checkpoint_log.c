/* SPDX-License-Identifier: MIT
 * What a checkpoint's function does, op by op: in forward it is noted, when the function runs again it is compared. Memory
 * made inside is known by the call that made it, memory from outside by its place in a list, with its version; what came
 * into being without an op (T.tensor {…}) by its bytes. So a second run that passes has computed the same bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/device/device.h"
#include "engine/grad/checkpoint_internal.h"
#include "engine/graph/ir/graph.h"
#include "engine/tensor/presence.h"

/* Stamps: 8 to a call. Its results have 1 … 5, an overwritten operand 5, bytes that were looked at 6, what else came into
 * being inside 7, and between calls 0. */
enum { STEP = 8, RESULT = 1, MANY = 5, SEEN = 6, WITHIN = 7 };
static inline bool by_op(uint64_t stamp) { return stamp % STEP != 0 && stamp % STEP != WITHIN; }

PlStatus pl_ck_grow(void *list, size_t n, size_t *cap, size_t size) {
  void **at = list;
  if (n < *cap) return PL_OK;
  const size_t more = *cap ? 2 * *cap : 16;
  void *p = more > SIZE_MAX / size ? NULL : realloc(*at, more * size);
  if (!p) PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
  *at = p;
  *cap = more;
  return PL_OK;
}

/* ---- hashes ------------------------------------------------------------------------------------------------- */

static inline uint32_t fold(uint64_t h) {
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdULL;
  return (uint32_t)(h >> 32);
}

/* All of a storage as bytes. */
static PlStatus as_bytes(PlTensor **out, PlStorage *st, PlTensor *of) {
  PL_TRY(pl_present(of));
  const int64_t n = (int64_t)st->nbytes, one = 1;
  PL_TRY(pl_tensor_window(out, of, 1, &n, &one, st->data));
  (*out)->a.dtype = PL_U8;
  return PL_OK;
}

static PlStatus mix_contents(uint64_t *h, PlTensor *t) {
  PlTensor *all, *here = NULL;
  PL_TRY(as_bytes(&all, t->storage, t));
  PlStatus s = pl_tensor_on_host(&here, all);
  if (s == PL_OK) s = pl_present(here);
  if (s == PL_OK) *h = pl_ck_mix_bytes(*h, here->a.data, (size_t)here->a.numel);
  pl_tensor_release(here);
  pl_tensor_release(all);
  return s;
}

/* ---- memory from outside --------------------------------------------------------------------------------------- */

static size_t place_of(const PlCheckpoint *c, const PlStorage *st) {
  size_t i = ((uintptr_t)st >> 4) * 0x9e3779b97f4a7c15ULL >> 20;
  for (;; i++) {
    const uint32_t at = c->places[i & (c->nplaces - 1)];
    if (!at || c->outside[at - 1].t->storage == st) return i & (c->nplaces - 1);
  }
}

PlCkOutside *pl_ck_find(const PlCheckpoint *c, const PlStorage *st) {
  if (!c->nplaces) return NULL;
  const uint32_t at = c->places[place_of(c, st)];
  return at ? &c->outside[at - 1] : NULL;
}

bool pl_ck_inside_any(const PlStorage *st) {
  for (const PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer)
    if (pl_ck_inside(c, st)) return true;
  return false;
}

int pl_ck_arg_of(const PlCheckpoint *c, const PlStorage *st) {
  for (int i = 0; i < c->nargs; i++)
    if (c->args[i]->storage == st) return i;
  return -1;
}

static PlStatus more_places(PlCheckpoint *c) {
  if (2 * (c->noutside + 1) < c->nplaces) return PL_OK;
  const size_t n = c->nplaces ? 2 * c->nplaces : 32;
  uint32_t *p = calloc(n, sizeof *p);
  if (!p) PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
  free(c->places);
  c->places = p;
  c->nplaces = n;
  for (size_t i = 0; i < c->noutside; i++) p[place_of(c, c->outside[i].t->storage)] = (uint32_t)i + 1;
  return PL_OK;
}

/* Keeps what o's memory holds, before the first write. */
static PlStatus keep_contents(PlCkOutside *o) {
  PlStorage *st = o->t->storage;
  PL_TRY(pl_writes(st)); /* under a limit of memory: it is wanted as it is */
  if (st->shared)
    PL_FAIL(PL_ERR_STATE, "checkpoint: the function changes %s in place, whose memory other threads share; work on a clone",
            pl_desc_text(&o->t->a));
  PlCkWritten *w = calloc(1, sizeof *w);
  if (!w) PL_FAIL(PL_ERR_OOM, "checkpoint: out of memory");
  PlTensor *all = NULL;
  PlStatus s = as_bytes(&all, st, o->t);
  if (s == PL_OK) s = pl_tensor_copy(&w->bytes, all);
  pl_tensor_release(all);
  if (s != PL_OK) {
    free(w);
    return s;
  }
  o->written = w;
  return PL_OK;
}

/* A constant of a graph that was traced in this run, as another was in forward: the entry of one with the same bytes. */
static PlStatus same_constant(const PlCheckpoint *c, PlTensor *t, PlCkOutside **out) {
  uint64_t here = 0, there;
  if (t->storage->stamp != PL_CLOCK_TRACE) return PL_OK;
  PL_TRY(mix_contents(&here, t));
  for (size_t i = 0; i < c->noutside && !*out; i++) {
    const PlStorage *a = t->storage, *b = c->outside[i].t->storage;
    if (b->stamp != PL_CLOCK_TRACE || b->nbytes != a->nbytes || b->version != a->version) continue;
    there = 0;
    PL_TRY(mix_contents(&there, c->outside[i].t));
    if (there == here) *out = &c->outside[i];
  }
  return PL_OK;
}

/* The entry of t's memory, which is from outside; by: the op that meets it. */
static PlStatus meet(PlCheckpoint *c, PlTensor *t, const char *by, PlCkOutside **out) {
  PlStorage *st = t->storage;
  *out = pl_ck_find(c, st);
  if (!*out && c->replaying) PL_TRY(same_constant(c, t, out));
  if (*out) return PL_OK;
  if (c->replaying) {
    c->failed = true;
    PL_FAIL(PL_ERR_STATE,
            "checkpoint: run again, the function's %s reads %s, a tensor from outside that it did not read in "
            "forward",
            by, pl_desc_text(&t->a));
  }
  PL_TRY(pl_ck_grow(&c->outside, c->noutside, &c->outside_cap, sizeof *c->outside));
  PL_TRY(more_places(c));
  PlCkOutside o = {.by = by, .version = st->version};
  PL_TRY(pl_tensor_alias(&o.t, t));
  c->outside[c->noutside++] = o;
  c->places[place_of(c, st)] = (uint32_t)c->noutside;
  *out = &c->outside[c->noutside - 1];
  /* Inside a second run of another checkpoint, memory that it wrote to holds what it did long ago. */
  const PlCkOutside *theirs = c->outer && c->outer->replaying ? pl_ck_find(c->outer, st) : NULL;
  return theirs && theirs->written ? keep_contents(*out) : PL_OK;
}

static PlStatus modified(PlCheckpoint *c, const PlCkOutside *o, const char *by) {
  const int arg = pl_ck_arg_of(c, o->t->storage);
  char what[40] = "", who[160] = "";
  if (arg >= 0) snprintf(what, sizeof what, "its argument %d, ", arg + 1);
  if (pl_state.watch) pl_state.watch->writer(o->t->storage, who, sizeof who);
  c->failed = true;
  PL_FAIL(PL_ERR_STATE,
          "checkpoint: %s%s, which the function's %s reads, was modified in place after the call%s (version %u, "
          "read at %u), so it cannot be run again; run backward first, or give it a clone",
          what, pl_desc_text(&o->t->a), by, who, o->t->storage->version, o->version);
}

static PlStatus mix_outside(PlCheckpoint *c, uint64_t *h, PlTensor *t, const char *by) {
  PlCkOutside *o;
  const uint32_t version = t->storage->version;
  PL_TRY(meet(c, t, by, &o));
  if (c->replaying && o->lost) {
    c->failed = true;
    PL_FAIL(PL_ERR_STATE,
            "checkpoint: %s, which the function's %s reads, was changed while it ran by something that is no "
            "operation, so it cannot be run again",
            pl_desc_text(&t->a), by);
  }
  if (!o->written && version != o->version) {
    if (c->replaying) return modified(c, o, by);
    o->lost = true;
  }
  *h = pl_ck_mix(pl_ck_mix(*h, 1), (uint64_t)(o - c->outside));
  *h = pl_ck_mix(*h, version - (o->written && c->replaying ? o->again : o->version));
  return PL_OK;
}

/* ---- calls --------------------------------------------------------------------------------------------------- */

/* What is alike for all checkpoints: types and numbers. */
/* Which memory it is; of what no op has made, the contents, if they are not `written` over. */
static PlStatus mix_place(PlCheckpoint *c, uint64_t *h, PlTensor *t, const char *by, bool written) {
  if (t->a.weak) return PL_OK;
  PlTensor *real = pl_behind(t);
  const PlStorage *st = real->storage;
  PL_TRY(pl_present(real)); /* its address is asked for */
  for (int d = 0; d < real->a.ndim; d++) *h = pl_ck_mix(*h, (uint64_t)real->a.strides[d]);
  *h = pl_ck_mix(*h, real->a.numel ? (uint64_t)((char *)real->a.data - (char *)st->data) : 0);
  if (!pl_ck_inside(c, st)) return mix_outside(c, h, real, by);
  *h = pl_ck_mix(*h, by_op(st->stamp) ? st->stamp - c->base : 3);
  return written || by_op(st->stamp) ? PL_OK : mix_contents(h, real);
}

static PlStatus differs(PlCheckpoint *c, const char *name, const PlCkCall *was, PlTensor *const *in, int nin) {
  char what[200] = "";
  const char *first = nin > 0 && in[0] ? pl_desc_text(&in[0]->a) : "nothing";
  if (!was) snprintf(what, sizeof what, "it ended there");
  else if (strcmp(was->name, name) != 0) snprintf(what, sizeof what, "there was %s", was->name);
  else snprintf(what, sizeof what, "there it was called %s", "with other sizes, options or numbers, or on other tensors");
  c->failed = true;
  PL_FAIL(PL_ERR_STATE,
          "checkpoint: run again, the function does not do what it did in forward: its operation %zu is %s of %s, "
          "and %s; random numbers must be drawn from T, and nothing it looks at may change between forward and "
          "backward",
          c->call, name, first, what);
}

static PlStatus stopped(PlCheckpoint *c) {
  c->stopped = c->complete;
  if (c->complete) PL_FAIL(PL_ERR_STATE, "checkpoint: this ends a function that is run again; let it pass");
  PL_FAIL(PL_ERR_STATE, "checkpoint: the function went on after it was found to differ from forward");
}

static bool alike(const PlCkCall *a, const PlCkCall *b) {
  return a->what == b->what && a->which == b->which && (a->name == b->name || strcmp(a->name, b->name) == 0);
}

static PlStatus note(PlCheckpoint *c, const char *name, uint64_t what, PlTensor *const *in, int nin, PlTensor *const *written,
                     int nwritten) {
  uint64_t which = 14695981039346656037ULL;
  if (c->replaying && (c->complete || c->failed)) return stopped(c);
  for (int i = 0; i < nin; i++)
    if (in[i]) PL_TRY(mix_place(c, &which, in[i], name, pl_ck_among(written, nwritten, in[i])));
  for (int i = 0; i < nwritten; i++) PL_TRY(mix_place(c, &which, written[i], name, true));
  const PlCkCall now = {.name = name, .what = fold(what), .which = fold(which) & 0x7fffffff};
  if (!c->replaying) {
    PL_TRY(pl_ck_grow(&c->calls, c->ncalls, &c->calls_cap, sizeof *c->calls));
    c->calls[c->ncalls++] = now;
    return PL_OK;
  }
  const PlCkCall *was = c->call < c->ncalls ? &c->calls[c->call] : NULL;
  while (was && was->failed && !alike(was, &now)) was = ++c->call < c->ncalls ? was + 1 : NULL;
  c->call++;
  return was && alike(was, &now) ? PL_OK : differs(c, name, was, in, nin);
}

/* What no op has made counts as seen from here on. */
static void mark_seen(PlTensor *const *in, int nin) {
  for (int i = 0; i < nin; i++) {
    if (!in[i] || in[i]->a.weak) continue;
    PlStorage *st = pl_behind(in[i])->storage;
    if (!by_op(st->stamp) && pl_ck_inside_any(st)) st->stamp = pl_clock - WITHIN + SEEN;
  }
}

PlStatus pl_checkpoint_enter(const char *name, const void *attrs, size_t size, bool draws, PlTensor *const *in, int nin,
                             PlTensor *const *written, int nwritten) {
  if (pl_state.checkpoint_depth++) return PL_OK;
  for (PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer) {
    const size_t now[] = {c->ncalls, c->call, c->nnodes, c->node, c->kernel};
    memcpy(c->mark, now, sizeof now);
  }
  pl_clock += WITHIN;
  uint64_t what = pl_ck_mix_bytes(14695981039346656037ULL, attrs, attrs ? size : 0);
  if (draws) what = pl_ck_mix(pl_ck_mix(pl_ck_mix(what, pl_state.seed), pl_state.stream), pl_state.offset);
  PlStatus s = PL_OK;
  for (int i = 0; i < nin; i++) {
    if (in[i]) pl_ck_mix_tensor(&what, in[i]);
    else what = pl_ck_mix(what, 0);
  }
  for (int i = 0; i < nwritten; i++) pl_ck_mix_tensor(&what, written[i]);
  for (PlCheckpoint *c = pl_state.checkpoint; c && s == PL_OK; c = c->outer) s = note(c, name, what, in, nin, written, nwritten);
  if (s == PL_OK) {
    for (int i = 0; i < nin; i++)
      if (!pl_ck_among(written, nwritten, in[i])) mark_seen(&in[i], 1);
    return PL_OK;
  }
  pl_checkpoint_failed();
  return s;
}

void pl_checkpoint_leave(PlTensor *const *out, int nout, PlTensor *const *written, int nwritten) {
  if (--pl_state.checkpoint_depth) return;
  const uint64_t call = pl_clock - WITHIN;
  for (int o = 0; o < nout; o++) {
    if (!out[o]) continue;
    PlStorage *st = pl_behind(out[o])->storage;
    if (st->stamp == pl_clock) st->stamp = call + (uint64_t)(o < MANY - RESULT ? RESULT + o : MANY);
  }
  for (PlCheckpoint *r = pl_state.checkpoint; r; r = r->outer) /* what failed in forward, and went well when it was called again */
    while (r->replaying && r->call > 0 && r->call < r->ncalls && r->calls[r->call - 1].failed &&
           alike(&r->calls[r->call - 1], &r->calls[r->call]))
      r->call++;
  PlCheckpoint *c = pl_state.checkpoint;
  if (c->rerun.names && !c->replaying && nout == 1 && out[0] && out[0]->storage == c->made && c->made->stamp == call + RESULT)
    (void)pl_ck_note_made(c, out[0]); /* without memory for it the value cannot be kept */
  c->made = NULL;
  pl_clock += STEP - WITHIN;
  for (int i = 0; i < nwritten; i++) {
    PlStorage *st = pl_behind(written[i])->storage;
    if (!pl_ck_inside_any(st) || (st->stamp >= call && by_op(st->stamp))) continue;
    st->stamp = by_op(st->stamp) ? call + MANY : pl_clock; /* made by no op: its bytes are looked at when it is read */
  }
}

void pl_checkpoint_failed(void) {
  if (--pl_state.checkpoint_depth) return;
  for (PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer) {
    if (c->failed) continue; /* what differs stays so */
    if (!c->replaying && c->ncalls > c->mark[0]) c->calls[c->ncalls - 1].failed = true;
    c->call = c->mark[1];
    if (!c->replaying)
      while (c->nnodes > c->mark[2] && !c->nodes[c->nnodes - 1].node) c->nnodes--;
    c->node = c->mark[3];
    c->kernel = c->mark[4];
    pl_ck_kept_cut(c, c->kernel);
    c->made = NULL;
  }
  pl_clock -= WITHIN; /* later calls count as if it had not been */
}

/* ---- compiled graphs --------------------------------------------------------------------------------------------- */

/* ---- writes -------------------------------------------------------------------------------------------------------- */

PlStatus pl_checkpoint_writes(const char *op, PlTensor *t) {
  PlTensor *real = pl_behind(t);
  for (PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer) {
    if (pl_ck_inside(c, real->storage)) {
      if (real->storage->kept && !c->replaying) PL_TRY(pl_ck_part_kept(c, real->storage));
      continue;
    }
    PlCkOutside *o = pl_ck_find(c, real->storage);
    if (c->replaying && !(o && o->written)) {
      c->failed = true;
      PL_FAIL(PL_ERR_STATE, "checkpoint: run again, the function's %s writes to %s, which it did not do in forward", op,
              pl_desc_text(&t->a));
    }
    if (c->replaying) continue;
    if (!o) PL_TRY(meet(c, real, op, &o));
    if (!o->written && o->version != real->storage->version) o->lost = true;
    if (!o->written) PL_TRY(keep_contents(o));
  }
  return PL_OK;
}

void pl_checkpoint_wrote(PlTensor *t) {
  PlStorage *st = pl_behind(t)->storage;
  if (pl_ck_inside_any(st)) st->stamp = pl_clock;
}

PlStatus pl_checkpoint_rewrites(const char *op, const PlTensor *t) {
  const PlTensor *root = t->base ? t->base : t;
  for (const PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer)
    if (!pl_ck_inside(c, t->storage) && !pl_ck_among(c->roots, c->nheld, root))
      PL_FAIL(PL_ERR_STATE,
              "%s: inside a checkpoint %s, a tensor from outside that is no argument, cannot get a new history; "
              "pass it to the function as an argument, or work on a clone",
              op, pl_desc_text(&t->a));
  return PL_OK;
}

PlStatus pl_checkpoint_sets_grad(const PlTensor *t) {
  for (const PlCheckpoint *c = pl_state.checkpoint; c; c = c->outer)
    if (!pl_ck_inside(c, t->storage))
      PL_FAIL(PL_ERR_STATE,
              "grad: inside a checkpoint the .grad of %s, a tensor from outside, cannot change: it would once more when the function runs "
              "again; set or clear it outside",
              pl_desc_text(&t->a));
  return PL_OK;
}

bool pl_checkpoint_foreign(const PlStorage *st) {
  const PlCheckpoint *c = pl_state.checkpoint;
  if (pl_ck_inside(c, st)) return false;
  const PlCkOutside *o = pl_ck_find(c, st);
  return !o || !o->written;
}

/* ---- there and back ------------------------------------------------------------------------------------------------- */

static PlStatus fill(const PlCkOutside *o, PlTensor *from) {
  PlTensor *all;
  PL_TRY(as_bytes(&all, o->t->storage, o->t));
  PlStatus s = pl_copy_arrays(&all->a, &from->a);
  pl_tensor_release(all);
  return s;
}

PlStatus pl_ck_put_back(PlCheckpoint *c) {
  for (size_t i = 0; i < c->noutside; i++) {
    PlCkOutside *o = &c->outside[i];
    PlCkWritten *w = o->written;
    PlStorage *st = o->t->storage;
    if (!w) continue;
    PlTensor *all = NULL, *now = NULL;
    PlStatus s = pl_writes(st); /* under a limit of memory: it stays, and nothing is computed from it again */
    if (s == PL_OK) s = as_bytes(&all, st, o->t);
    if (s == PL_OK) s = pl_tensor_copy(&now, all);
    pl_tensor_release(all);
    if (s == PL_OK) s = fill(o, w->bytes);
    if (s != PL_OK) {
      pl_tensor_release(now);
      return s;
    }
    w->now = now;
    w->version_now = st->version;
    o->again = ++st->version;
  }
  return PL_OK;
}

PlStatus pl_ck_put_forth(PlCheckpoint *c) {
  PlStatus s = PL_OK;
  for (size_t i = 0; i < c->noutside; i++) {
    PlCkOutside *o = &c->outside[i];
    PlCkWritten *w = o->written;
    PlStorage *st = o->t->storage;
    if (!w || !w->now) continue;
    PlStatus mine = fill(o, w->now);
    if (s == PL_OK) s = mine;
    st->version = w->version_now;
    pl_tensor_release(w->now);
    w->now = NULL;
  }
  return s;
}

void pl_ck_log_free(PlCheckpoint *c) {
  for (size_t i = 0; i < c->noutside; i++) {
    PlCkWritten *w = c->outside[i].written;
    if (w) {
      pl_tensor_release(w->bytes);
      free(w);
    }
    pl_tensor_release(c->outside[i].t);
  }
  for (size_t i = 0; i < c->ncasts; i++) {
    pl_tensor_release(c->casts[i].leaf);
    pl_tensor_release(c->casts[i].cast);
  }
  free(c->calls);
  free(c->outside);
  free(c->places);
  free(c->casts);
}
