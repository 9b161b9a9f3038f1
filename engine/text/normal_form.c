/* SPDX-License-Identifier: MIT
 * See normal_form.h. Runs of characters that begin with a starter are decomposed, put in canonical order and composed; each
 * character carries by how much it moves the old text: 1 if it is one more, 0 if it is in another's place, -n if n others
 * have become part of it. These numbers travel with the characters when they are reordered, as in the reference. */
#include "engine/text/normal_form.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/characters.h"

typedef struct Mark {
  int32_t c;
  int change;
} Mark;

typedef struct Form {
  PlEdit *e;
  bool compose, compatible;
  Mark *run; /* decomposed characters that are not sorted yet */
  size_t n, room;
  Mark starter; /* composing: what marks may join; c < 0: none */
  Mark *held;   /* marks that did not join, which come after it */
  size_t nheld, held_room;
  int last; /* class of the last held one, -1: none */
} Form;

static PlStatus emit(Form *f, Mark m) { return pl_edit_char(f->e, m.c, m.change); }

static PlStatus emit_held(Form *f) {
  for (size_t i = 0; i < f->nheld; i++) PL_TRY(emit(f, f->held[i]));
  f->nheld = 0;
  f->last = -1;
  return PL_OK;
}

static PlStatus hold(Form *f, Mark m, int class) {
  PL_TRY(pl_grow(&f->held, &f->held_room, f->nheld + 1, sizeof *f->held));
  f->held[f->nheld++] = m;
  f->last = class;
  return PL_OK;
}

/* The next character in canonical order. */
static PlStatus composed(Form *f, Mark m) {
  int class = pl_char_class(m.c);
  if (f->starter.c < 0) {
    if (class != 0) return emit(f, m);
    f->starter = m;
    return PL_OK;
  }
  bool blocked = f->last >= 0 && f->last >= class;
  int32_t both = blocked ? -1 : pl_char_compose(f->starter.c, m.c);
  if (both >= 0) {
    f->starter = (Mark){both, f->starter.change + m.change - 1};
    return PL_OK;
  }
  if (class != 0) return hold(f, m, class);
  PL_TRY(emit(f, f->starter));
  f->starter = m;
  return emit_held(f);
}

static int by_class(const void *a, const void *b) {
  const Mark *x = a, *y = b;
  int p = pl_char_class(x->c), q = pl_char_class(y->c);
  return p < q ? -1 : p > q;
}

/* Stable; runs are short, unless somebody means harm. */
static PlStatus sort_run(Form *f) {
  if (f->n > 64) {
    Mark *copy = malloc(f->n * sizeof *copy);
    if (!copy) PL_FAIL(PL_ERR_OOM, "encode: out of memory");
    size_t k = 0;
    for (int class = 0; class < 256 && k < f->n; class ++)
      for (size_t i = 0; i < f->n; i++)
        if (pl_char_class(f->run[i].c) == class) copy[k++] = f->run[i];
    memcpy(f->run, copy, k * sizeof *copy);
    free(copy);
    return PL_OK;
  }
  for (size_t i = 1; i < f->n; i++) {
    Mark m = f->run[i];
    size_t k = i;
    for (; k > 0 && by_class(&f->run[k - 1], &m) > 0; k--) f->run[k] = f->run[k - 1];
    f->run[k] = m;
  }
  return PL_OK;
}

static PlStatus flush(Form *f) {
  PL_TRY(sort_run(f));
  for (size_t i = 0; i < f->n; i++) PL_TRY(f->compose ? composed(f, f->run[i]) : emit(f, f->run[i]));
  f->n = 0;
  return PL_OK;
}

static PlStatus finish(Form *f) {
  PL_TRY(flush(f));
  if (f->starter.c >= 0) PL_TRY(emit(f, f->starter));
  f->starter.c = -1;
  return emit_held(f);
}

static PlStatus form(Form *f) {
  const PlSlice *old = &f->e->old;
  for (size_t i = 0, len; i < old->n; i += len) {
    int32_t parts[32], c = pl_char_at(old->s + i, old->n - i, &len);
    if (c < 0) { /* a byte that is no character stands between texts of their own */
      PL_TRY(finish(f));
      PL_TRY(pl_edit_replace(f->e, old->s + i, len, len));
      continue;
    }
    int n = pl_char_decompose(c, f->compatible, parts, 32);
    for (int k = 0; k < n; k++) {
      if (pl_char_class(parts[k]) == 0) PL_TRY(flush(f));
      PL_TRY(pl_grow(&f->run, &f->room, f->n + 1, sizeof *f->run));
      f->run[f->n++] = (Mark){parts[k], k > 0};
    }
  }
  return finish(f);
}

PlStatus pl_normal_form(PlEdit *e, bool compose, bool compatible) {
  Form f = {.e = e, .compose = compose, .compatible = compatible, .starter = {-1, 0}, .last = -1};
  PlStatus st = form(&f);
  free(f.run);
  free(f.held);
  return st;
}
