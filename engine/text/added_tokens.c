/* SPDX-License-Identifier: MIT
 * Finding added tokens in a text; see pre_tokenizer.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/characters.h"
#include "engine/text/pre_tokenizer.h"

static PlStatus new_node(PlTrie *t, uint8_t byte, int32_t *out) {
  if (t->n >= INT32_MAX / 2) PL_FAIL(PL_ERR_FORMAT, "tokenizer: too many added tokens");
  PL_TRY(pl_grow(&t->node, &t->room, t->n + 1, sizeof *t->node));
  t->node[t->n] = (PlTrieNode){.child = -1, .sibling = -1, .token = -1, .byte = byte};
  *out = (int32_t)t->n++;
  return PL_OK;
}

static int32_t child_of(const PlTrie *t, int32_t at, uint8_t byte) {
  int32_t k = t->node[at].child;
  while (k >= 0 && t->node[k].byte != byte) k = t->node[k].sibling;
  return k;
}

PlStatus pl_trie_add(PlTrie *t, const char *s, size_t n, int32_t token) {
  int32_t at = 0;
  if (n == 0) return PL_OK;
  if (t->n == 0) PL_TRY(new_node(t, 0, &at));
  t->first[(uint8_t)s[0]] = true;
  for (size_t i = 0; i < n; i++) {
    int32_t k = child_of(t, at, (uint8_t)s[i]);
    if (k < 0) {
      PL_TRY(new_node(t, (uint8_t)s[i], &k));
      t->node[k].sibling = t->node[at].child;
      t->node[at].child = k;
    }
    at = k;
  }
  if (t->node[at].token < 0) t->node[at].token = token;
  return PL_OK;
}

int32_t pl_trie_find(const PlTrie *t, const char *s, size_t n, size_t *len) {
  int32_t found = -1;
  for (size_t i = 0, at = 0; i < n; i++) {
    int32_t k = child_of(t, (int32_t)at, (uint8_t)s[i]);
    if (k < 0) break;
    at = (size_t)k;
    if (t->node[at].token < 0) continue;
    found = t->node[at].token;
    *len = i + 1;
  }
  return found;
}

void pl_trie_free(PlTrie *t) { free(t->node); }

/* Whether a token at s[at, end) stands between characters that are not of words. */
static bool is_single(const char *s, size_t n, size_t at, size_t end) {
  size_t len;
  if (at > 0) {
    size_t k = pl_char_before(s, at);
    if (pl_char_is_word(pl_char_at(s + k, at - k, &len))) return false;
  }
  return end >= n || !pl_char_is_word(pl_char_at(s + end, n - end, &len));
}

/* The search goes on behind a token's own text, be it refused or widened: one that stands in the blanks which the token
 * before has taken is a token all the same, as in the library that made these files, unless it takes blanks in front of it. */
PlStatus pl_added_each(const PlTrie *t, const PlAdded *added, bool special, const PlSlice *p, PlSliceFn between, PlAddedFn token,
                       void *ctx) {
  const char *s = p->s;
  size_t done = 0, n = p->n, len = 0, run = 0, run_end = 0; /* of blanks: one look at each, however many tokens are in it */
  for (size_t i = 0; t->n > 0 && i < n; i += len) {
    len = 1;
    int32_t k = t->first[(uint8_t)s[i]] ? pl_trie_find(t, s + i, n - i, &len) : -1;
    if (k < 0) continue;
    size_t at = i, end = i + len, blank;
    const PlAdded *a = &added[k];
    if ((a->special && !special) || (a->single_word && !is_single(s, n, at, end))) continue;
    while (a->lstrip && at > done) {
      size_t before = pl_char_before(s, at);
      if (pl_space_at(s + before, at - before) == 0) break;
      at = before;
    }
    if (a->lstrip && at < done) at = done;
    if (a->rstrip) {
      if (end < run || end > run_end) {
        run = run_end = end;
        while ((blank = pl_space_at(s + run_end, n - run_end)) > 0) run_end += blank;
      }
      end = run_end;
    }
    if (end <= at) continue; /* what widened the token before has taken all of it */
    if (at > done) {
      PlSlice part = pl_slice_part(p, s + done, at - done);
      PL_TRY(between(ctx, &part));
    }
    PlSlice part = pl_slice_part(p, s + at, end - at);
    PL_TRY(token(ctx, &part, k));
    done = end;
  }
  PlSlice rest = pl_slice_part(p, s + done, n - done);
  return done < n ? between(ctx, &rest) : PL_OK;
}
