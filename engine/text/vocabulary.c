/* SPDX-License-Identifier: MIT
 * See vocabulary.h. */
#include "engine/text/vocabulary.h"

#include <stdlib.h>
#include <string.h>

/* Eight bytes at a time, as words are short (a multiply and a shift each: wyhash's mixing in small). */
uint64_t pl_text_hash(const char *s, size_t n) {
  uint64_t h = 0x9e3779b97f4a7c15u ^ n;
  for (; n >= 8; s += 8, n -= 8) {
    uint64_t w;
    memcpy(&w, s, 8);
    h = (h ^ w) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  uint64_t w = 0;
  for (size_t i = 0; i < n; i++) w = w << 8 | (unsigned char)s[i];
  h = (h ^ w) * 0xff51afd7ed558ccdu;
  h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
  return h ^ h >> 29;
}

static size_t find_slot(const PlVocab *v, const char *text, size_t n) {
  size_t i = pl_text_hash(text, n) & (v->nslot - 1);
  for (; v->slot[i] >= 0; i = (i + 1) & (v->nslot - 1)) {
    const PlToken *t = &v->token[v->slot[i]];
    if (t->len == n && memcmp(v->arena + t->at, text, n) == 0) break;
  }
  return i;
}

int32_t pl_vocab_find(const PlVocab *v, const char *text, size_t n) { return v->nslot ? v->slot[find_slot(v, text, n)] : -1; }

const char *pl_vocab_text(const PlVocab *v, int64_t id, size_t *n) {
  if (id < 0 || id >= v->n || !v->token[id].present) return NULL;
  *n = v->token[id].len;
  return v->arena + v->token[id].at;
}

static PlStatus rehash(PlVocab *v, size_t nslot) {
  int32_t *slot = malloc(nslot * sizeof *slot);
  if (!slot) PL_FAIL(PL_ERR_OOM, "tokenizer: out of memory");
  memset(slot, -1, nslot * sizeof *slot);
  free(v->slot);
  v->slot = slot;
  v->nslot = nslot;
  for (int64_t id = 0; id < v->n; id++) {
    if (!v->token[id].present) continue;
    size_t i = find_slot(v, v->arena + v->token[id].at, v->token[id].len);
    if (v->slot[i] < 0) v->slot[i] = (int32_t)id;
  }
  return PL_OK;
}

PlStatus pl_vocab_add(PlVocab *v, const char *name, int64_t id, const char *text, size_t n) {
  if (id < 0 || id > INT32_MAX / 2 || n > UINT32_MAX / 4)
    PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: a token of id %lld", name, (long long)id);
  if (id >= v->n) {
    PL_TRY(pl_grow(&v->token, &v->room, (size_t)id + 1, sizeof *v->token));
    memset(v->token + v->n, 0, (size_t)(id + 1 - v->n) * sizeof *v->token);
    v->n = id + 1;
  }
  if (v->token[id].present) PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: id %lld belongs to two tokens", name, (long long)id);
  PL_TRY(pl_grow(&v->arena, &v->arena_room, v->used + n + 1, 1));
  size_t nslot = v->nslot ? v->nslot : 1024;
  while ((size_t)(v->count + 1) * 2 > nslot) nslot *= 2;
  if (nslot != v->nslot) PL_TRY(rehash(v, nslot));
  if (n) memcpy(v->arena + v->used, text, n);
  v->token[id] = (PlToken){.at = v->used, .len = (uint32_t)n, .present = true};
  v->used += n;
  v->count++;
  size_t i = find_slot(v, text, n);
  if (v->slot[i] < 0) v->slot[i] = (int32_t)id;
  return PL_OK;
}

void pl_vocab_free(PlVocab *v) {
  free(v->token);
  free(v->arena);
  free(v->slot);
}
