/* SPDX-License-Identifier: MIT
 * Memory of captured work. The work is noted twice. First for its pieces alone: which blocks it takes and for how long; nothing of
 * that is ever run, so the memory may be what idles, and is anybody's again as soon as it is freed. Then in one block of memory where
 * each piece has its planned place: lists by size would keep the most of every size side by side, though they were never alive
 * together (a quarter of a training step's memory). What does not happen as planned gets memory apart. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/runtime/pool.h"

#define LARGE ((int64_t)64 << 20) /* from here on what idles goes back before such a block is made */

struct PlcOwner {
  int gpu;
  cudaStream_t home; /* where the thread works otherwise */
  PlkCapturePiece *piece;
  int64_t n, room;  /* noted, or planned */
  int64_t next;     /* of the plan */
  int64_t clock;    /* what was taken and freed so far */
  Block *arena;     /* of the plan */
  Block *free;      /* memory apart, of any size */
  int64_t inside;   /* pieces in the arena that are alive */
  bool dry, paused; /* for its pieces alone; no longer */
  bool strayed;     /* from the plan */
  bool ended;       /* gone when nothing is inside */
};
static _Thread_local PlcOwner *owner; /* of what this thread allocates now */

bool plc_owner_is_set(void) { return owner != NULL; }
cudaStream_t plc_owner_home(void) { return owner->home; }
void plc_owner_pause(void) {
  if (owner) owner->paused = true;
  owner = NULL;
}
const PlkCapturePiece *plc_owner_pieces(const PlcOwner *o, int64_t *n) {
  *n = o->n;
  return o->piece;
}

static PlStatus make_arena(PlcOwner *o, int64_t bytes) {
  PlcPool *al = plc_here()->pool;
  pthread_mutex_lock(&al->lock);
  if (bytes >= LARGE && al->cached_bytes > 0) plc_pool_flush(al);
  PlStatus s = plc_pool_header(al, &o->arena);
  if (s == PL_OK) {
    o->arena->bytes = (size_t)bytes;
    o->arena->stream = o->home;
    s = plc_pool_make_aside(al, o->arena);
    if (s != PL_OK) {
      plc_pool_spare(al, o->arena);
      o->arena = NULL;
    }
  }
  pthread_mutex_unlock(&al->lock);
  return s;
}

PlStatus plc_owner_begin(const PlkCaptureRoom *room, PlcOwner **out) {
  PlcOwner *o = *out = calloc(1, sizeof *o);
  if (!o) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
  o->gpu = plc_here()->index;
  o->home = plc_stream();
  o->dry = !room;
  if (room && room->n > 0) {
    o->piece = malloc((size_t)room->n * sizeof *o->piece);
    if (!o->piece) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
    memcpy(o->piece, room->piece, (size_t)room->n * sizeof *o->piece);
    o->n = room->n;
    PL_TRY(make_arena(o, room->bytes));
  }
  owner = o;
  return PL_OK;
}

static PlStatus note(PlcOwner *o, int64_t bytes) {
  if (o->n == o->room) {
    const int64_t more = o->room ? 2 * o->room : 64;
    PlkCapturePiece *p = realloc(o->piece, (size_t)more * sizeof *p);
    if (!p) PL_FAIL(PL_ERR_OOM, "cuda: out of host memory");
    o->piece = p;
    o->room = more;
  }
  o->piece[o->n++] = (PlkCapturePiece){.bytes = bytes, .birth = o->clock, .death = INT64_MAX};
  return PL_OK;
}

static Block *take_apart(PlcOwner *o, size_t bytes) {
  for (Block **at = &o->free; *at; at = &(*at)->next) {
    Block *b = *at;
    if (b->bytes != bytes) continue;
    *at = b->next;
    return b;
  }
  return NULL;
}

/* The next piece of the plan, if all went as planned so far: then its place is free. */
static bool as_planned(PlcOwner *o, int64_t bytes) {
  const PlkCapturePiece *p = &o->piece[o->next];
  o->strayed = o->strayed || o->next == o->n || p->bytes != bytes || p->birth != o->clock;
  return !o->strayed;
}

static PlStatus get_planned(PlcPool *al, PlcOwner *o, Block **out) {
  PL_TRY(plc_pool_header(al, out));
  const PlkCapturePiece *p = &o->piece[o->next];
  **out = (Block){.p = (char *)o->arena->p + p->at, .bytes = (size_t)p->bytes, .stream = o->home, .owner = o, .piece = o->next++};
  o->inside++;
  return PL_OK;
}

static PlStatus get_block(PlcPool *al, PlcOwner *o, size_t bytes, Block **out) {
  *out = o->dry ? plc_pool_take(al, bytes, o->home) : take_apart(o, bytes);
  if (*out) return PL_OK;
  PL_TRY(plc_pool_header(al, out));
  (*out)->bytes = bytes;
  (*out)->stream = o->home;
  PlStatus s = o->dry ? plc_pool_make(al, *out, o->home) : plc_pool_make_aside(al, *out);
  if (s != PL_OK) plc_pool_spare(al, *out);
  return s;
}

PlStatus plc_owner_get(PlcPool *al, size_t bytes, size_t n, Block **out) {
  PlcOwner *o = owner;
  const int64_t exact = n ? ((int64_t)n + 511) / 512 * 512 : 512;
  if (!o->dry && as_planned(o, exact)) {
    PL_TRY(get_planned(al, o, out));
  } else {
    PL_TRY(get_block(al, o, bytes, out));
    (*out)->owner = o;
    (*out)->piece = o->dry ? o->n : -1;
    if (o->dry) PL_TRY(note(o, exact));
  }
  o->clock++;
  return PL_OK;
}

/* All that it has is everybody's: the captured work is done. */
static void finish(PlcPool *al, PlcOwner *o) {
  if (o->arena) plc_pool_idles(al, o->arena);
  free(o->piece);
  free(o);
}

void plc_owner_freed(PlcPool *al, Block *b) {
  PlcOwner *o = b->owner;
  const int64_t now = o->clock;
  if (!o->paused) o->clock++;
  if (o->dry) {
    if (!o->paused) o->piece[b->piece].death = now;
    b->owner = NULL;
    plc_pool_idles(al, b);
  } else if (b->piece < 0) {
    b->next = o->free;
    o->free = b;
  } else {
    if (!o->paused && o->piece[b->piece].death != now) o->strayed = true;
    o->inside--;
    plc_pool_spare(al, b);
    if (o->ended && o->inside == 0) finish(al, o);
  }
}

void plc_owner_end(PlcOwner *o) {
  if (!o) return;
  PlcPool *al = plc_gpu(o->gpu)->pool;
  pthread_mutex_lock(&al->lock);
  if (owner == o) owner = NULL;
  o->paused = o->ended = true;
  const cudaStream_t now = plc_stream(); /* the captured work is done; the stream of then may be destroyed */
  for (int i = 0; i < LIVE; i++)
    for (Block *b = al->live[i]; b; b = b->next)
      if (b->owner == o && (o->dry || b->piece < 0)) b->owner = NULL, b->stream = now;
  while (o->free) {
    Block *b = o->free;
    o->free = b->next;
    b->owner = NULL;
    b->stream = now;
    plc_pool_idles(al, b);
  }
  if (o->arena) o->arena->stream = now;
  if (o->inside == 0) finish(al, o);
  pthread_mutex_unlock(&al->lock);
}
