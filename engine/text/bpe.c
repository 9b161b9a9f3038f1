/* SPDX-License-Identifier: MIT
 * See bpe.h. A word of n bytes takes O(n log n): possible merges wait in a heap, ordered by rank and place; those whose
 * symbols have changed since are thrown away when they come up. */
#include "engine/text/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/io/safetensors_header.h"
#include "kernels/kernel.h"

enum { CACHE_WORDS = 1 << 13, CACHE_BYTES = 24, CACHE_IDS = 8 };

/* Words seen lately, one place each. */
typedef struct CachedWord {
  uint8_t len, nid;
  char word[CACHE_BYTES];
  int32_t id[CACHE_IDS];
} CachedWord;

struct PlWordCache {
  CachedWord w[CACHE_WORDS];
};

static PlStatus no_memory(void) { PL_FAIL(PL_ERR_OOM, "tokenizer: out of memory"); }

/* Grows an array of elements of `size` bytes to hold `want`. */
static PlStatus grow(void *array, size_t *room, size_t want, size_t size) {
  if (want <= *room) return PL_OK;
  size_t n = *room * 2 > want ? *room * 2 : want + 64;
  void *p;
  memcpy(&p, array, sizeof p);
  p = n < SIZE_MAX / size ? realloc(p, n * size) : NULL;
  if (!p) return no_memory();
  memcpy(array, &p, sizeof p);
  *room = n;
  return PL_OK;
}

PlStatus pl_ids_push(PlIds *ids, int32_t id) {
  if (ids->n == ids->room) PL_TRY(grow(&ids->v, &ids->room, ids->n + 1, sizeof *ids->v));
  ids->v[ids->n++] = id;
  return PL_OK;
}

/* ---- the alphabet of bytes ---------------------------------------------------------------------------------------- */

static bool stands_for_itself(int b) { return (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; }

static int char_of_byte(uint8_t byte) {
  if (stands_for_itself(byte)) return byte;
  int before = 0;
  for (int b = 0; b < byte; b++) before += !stands_for_itself(b);
  return 256 + before;
}

int pl_byte_char(uint8_t byte, char *to) {
  int u = char_of_byte(byte);
  if (u < 0x80) {
    to[0] = (char)u;
    return 1;
  }
  to[0] = (char)(0xC0 | (u >> 6));
  to[1] = (char)(0x80 | (u & 0x3F));
  return 2;
}

/* The byte of the character at s (one or two bytes of UTF-8), or -1. */
static int byte_of_char(const char *s, size_t n, size_t *len) {
  unsigned char c = (unsigned char)s[0];
  int u = c;
  *len = 1;
  if (c >= 0x80) {
    if (c < 0xC2 || c > 0xC5 || n < 2) return -1;
    *len = 2;
    u = (c & 0x1F) << 6 | ((unsigned char)s[1] & 0x3F);
  }
  if (u < 256) return stands_for_itself(u) ? u : -1;
  for (int b = 0, k = 256; b < 256; b++)
    if (!stands_for_itself(b) && k++ == u) return b;
  return -1;
}

/* ---- vocabulary ------------------------------------------------------------------------------------------------------- */

static uint64_t hash(const char *s, size_t n) {
  uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
  for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 0x100000001b3u;
  return h ^ h >> 29;
}

static const char *text_of(const PlBpe *b, int32_t id) { return b->arena + b->token[id].at; }

static size_t find_slot(const PlBpe *b, const char *text, size_t n) {
  size_t i = hash(text, n) & (b->nslot - 1);
  for (; b->slot[i] >= 0; i = (i + 1) & (b->nslot - 1)) {
    const PlToken *t = &b->token[b->slot[i]];
    if (t->len == n && memcmp(b->arena + t->at, text, n) == 0) break;
  }
  return i;
}

int32_t pl_bpe_find(const PlBpe *b, const char *text, size_t n) { return b->nslot ? b->slot[find_slot(b, text, n)] : -1; }

static PlStatus rehash(PlBpe *b, size_t nslot) {
  int32_t *slot = malloc(nslot * sizeof *slot);
  if (!slot) return no_memory();
  for (size_t i = 0; i < nslot; i++) slot[i] = -1;
  free(b->slot);
  b->slot = slot;
  b->nslot = nslot;
  for (int64_t id = 0; id < b->n; id++)
    if (b->token[id].present) b->slot[find_slot(b, text_of(b, (int32_t)id), b->token[id].len)] = (int32_t)id;
  return PL_OK;
}

static PlStatus append(PlBpe *b, const char *s, size_t n, uint32_t *at) {
  if (b->used + n > UINT32_MAX) PL_FAIL(PL_ERR_FORMAT, "tokenizer: more than 4 GiB of tokens");
  PL_TRY(grow(&b->arena, &b->arena_room, b->used + n + 1, 1));
  memcpy(b->arena + b->used, s, n);
  *at = (uint32_t)b->used;
  b->used += n;
  return PL_OK;
}

/* <0xE2> -> 0xE2, else -1. */
static int named_byte(const char *s, size_t n) {
  static const char digits[] = "0123456789ABCDEF";
  if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
  const char *hi = memchr(digits, s[3], 16), *lo = memchr(digits, s[4], 16);
  return hi && lo ? (int)((hi - digits) * 16 + (lo - digits)) : -1;
}

/* Replaces `from` by `into` in the n bytes at the end of the arena; *n follows. */
static PlStatus replace_last(PlBpe *b, const char *from, const char *into, size_t *n) {
  size_t nf = strlen(from), ni = strlen(into), at = b->used - *n, end = b->used;
  PL_TRY(grow(&b->arena, &b->arena_room, end + *n * (ni + 1) + 1, 1)); /* nf > 0: at most n of them */
  char *s = b->arena + at, *to = b->arena + end;
  size_t k = 0;
  for (size_t i = 0; i < *n;) {
    if (*n - i >= nf && memcmp(s + i, from, nf) == 0) {
      memcpy(to + k, into, ni);
      k += ni;
      i += nf;
    } else {
      to[k++] = s[i++];
    }
  }
  memmove(s, to, k);
  b->used = at + k;
  *n = k;
  return PL_OK;
}

static PlStatus add_char_bytes(PlBpe *b, PlToken *t) {
  int byte = b->named_bytes ? named_byte(b->arena + t->at, t->len) : -1;
  size_t n = byte >= 0 ? 1 : t->len;
  char one = (char)byte;
  PL_TRY(grow(&b->arena, &b->arena_room, b->used + n + 1, 1)); /* append must not move what it copies */
  PL_TRY(append(b, byte >= 0 ? &one : b->arena + t->at, n, &t->bytes_at));
  for (int i = 0; i < b->nreplace && byte < 0; i++) PL_TRY(replace_last(b, b->from[i], b->into[i], &n));
  t->bytes_len = (uint32_t)n;
  return PL_OK;
}

/* The bytes behind a token's characters; a token with other characters means its own text. */
static PlStatus add_bytes(PlBpe *b, PlToken *t) {
  if (b->chars) return add_char_bytes(b, t);
  PL_TRY(grow(&b->arena, &b->arena_room, b->used + t->len + 1, 1));
  const char *s = b->arena + t->at;
  char *to = b->arena + b->used;
  size_t n = 0, len = 0;
  for (size_t i = 0; i < t->len; i += len) {
    int byte = byte_of_char(s + i, t->len - i, &len);
    if (byte < 0) {
      t->bytes_at = t->at;
      t->bytes_len = t->len;
      return PL_OK;
    }
    to[n++] = (char)byte;
  }
  t->bytes_at = (uint32_t)b->used;
  t->bytes_len = (uint32_t)n;
  b->used += n;
  return PL_OK;
}

PlStatus pl_bpe_add(PlBpe *b, int64_t id, const char *text, size_t n) {
  size_t room = (size_t)b->room;
  if (id >= b->n) {
    PL_TRY(grow(&b->token, &room, (size_t)id + 1, sizeof *b->token));
    b->room = (int64_t)room;
    memset(b->token + b->n, 0, (size_t)(id + 1 - b->n) * sizeof *b->token);
    b->n = id + 1;
  }
  if (b->token[id].present) PL_FAIL(PL_ERR_FORMAT, "tokenizer: id %lld belongs to two tokens", (long long)id);
  PlToken t = {.present = true, .len = (uint32_t)n};
  if (n > UINT32_MAX / 4) PL_FAIL(PL_ERR_FORMAT, "tokenizer: a token of %zu bytes", n);
  PL_TRY(append(b, text, n, &t.at));
  PL_TRY(add_bytes(b, &t));
  if ((size_t)b->n * 2 >= b->nslot) PL_TRY(rehash(b, b->nslot ? b->nslot * 2 : 1024));
  while ((size_t)b->n * 2 >= b->nslot) PL_TRY(rehash(b, b->nslot * 2));
  b->token[id] = t;
  b->slot[find_slot(b, b->arena + t.at, n)] = (int32_t)id;
  return PL_OK;
}

PlStatus pl_bpe_means(PlBpe *b, int32_t id, const char *text, size_t n) {
  PlToken t = {.len = (uint32_t)n};
  if (n > UINT32_MAX / 4) PL_FAIL(PL_ERR_FORMAT, "tokenizer: a token of %zu bytes", n);
  PL_TRY(append(b, text, n, &t.at));
  PL_TRY(add_bytes(b, &t));
  b->token[id].bytes_at = t.bytes_at;
  b->token[id].bytes_len = t.bytes_len;
  return PL_OK;
}

/* ---- merges -------------------------------------------------------------------------------------------------------------- */

PlStatus pl_bpe_ready(PlBpe *b, size_t nmerge, bool fallback) {
  for (int k = 0; k < 256; k++) {
    char s[8];
    int n = b->chars ? snprintf(s, sizeof s, "<0x%02X>", (unsigned)k) : pl_byte_char((uint8_t)k, s);
    b->byte_id[k] = b->chars && !fallback ? -1 : pl_bpe_find(b, s, (size_t)n);
  }
  size_t n = 16;
  while (n < nmerge * 2) n *= 2;
  b->merge = malloc(n * sizeof *b->merge);
  if (!b->merge) return no_memory();
  for (size_t i = 0; i < n; i++) b->merge[i].pair = PL_NO_PAIR;
  b->nmerge = n;
  return PL_OK;
}

static size_t merge_slot(const PlBpe *b, uint64_t pair) {
  uint64_t h = pair * 0x9e3779b97f4a7c15u;
  size_t i = (h ^ h >> 32) & (b->nmerge - 1);
  while (b->merge[i].pair != PL_NO_PAIR && b->merge[i].pair != pair) i = (i + 1) & (b->nmerge - 1);
  return i;
}

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)(uint32_t)left << 32 | (uint32_t)right; }

void pl_bpe_merge(PlBpe *b, int32_t left, int32_t right, int32_t rank, int32_t id) {
  uint64_t pair = pair_of(left, right);
  PlMerge *m = &b->merge[merge_slot(b, pair)];
  if (m->pair == PL_NO_PAIR) *m = (PlMerge){.pair = pair, .rank = rank, .id = id};
}

const PlMerge *pl_bpe_find_merge(const PlBpe *b, int32_t left, int32_t right) {
  const PlMerge *m = &b->merge[merge_slot(b, pair_of(left, right))];
  return m->pair == PL_NO_PAIR ? NULL : m;
}

/* ---- one word ------------------------------------------------------------------------------------------------------------- */

static bool before(const PlPair *a, const PlPair *b) { return a->rank != b->rank ? a->rank < b->rank : a->left < b->left; }

static PlStatus heap_push(PlBpe *b, PlPair p) {
  PL_TRY(grow(&b->heap, &b->heap_room, b->nheap + 1, sizeof *b->heap));
  size_t i = b->nheap++;
  for (; i > 0 && before(&p, &b->heap[(i - 1) / 2]); i = (i - 1) / 2) b->heap[i] = b->heap[(i - 1) / 2];
  b->heap[i] = p;
  return PL_OK;
}

static PlPair heap_pop(PlBpe *b) {
  PlPair top = b->heap[0], last = b->heap[--b->nheap];
  size_t i = 0;
  for (;;) {
    size_t k = 2 * i + 1;
    if (k >= b->nheap) break;
    if (k + 1 < b->nheap && before(&b->heap[k + 1], &b->heap[k])) k++;
    if (!before(&b->heap[k], &last)) break;
    b->heap[i] = b->heap[k];
    i = k;
  }
  b->heap[i] = last;
  return top;
}

/* Notes the merge of symbol `left` with its right neighbour, if there is one. */
static PlStatus note_pair(PlBpe *b, int32_t left) {
  if (left < 0 || b->symbol[left].next < 0) return PL_OK;
  int32_t lid = b->symbol[left].id, rid = b->symbol[b->symbol[left].next].id;
  const PlMerge *m = pl_bpe_find_merge(b, lid, rid);
  if (!m) return PL_OK;
  return heap_push(b, (PlPair){.rank = m->rank, .left = left, .id = m->id, .lid = lid, .rid = rid});
}

static PlStatus merge_all(PlBpe *b, int32_t n) {
  PlSymbol *s = b->symbol;
  b->nheap = 0;
  for (int32_t i = 0; i + 1 < n; i++) PL_TRY(note_pair(b, i));
  for (int64_t step = 0; b->nheap > 0; step++) {
    PlPair p = heap_pop(b);
    int32_t right = s[p.left].next;
    if (s[p.left].id != p.lid || right < 0 || s[right].id != p.rid) continue;
    s[p.left].id = p.id;
    s[p.left].next = s[right].next;
    s[right].id = -1;
    if (s[right].next >= 0) s[s[right].next].prev = p.left;
    PL_TRY(note_pair(b, s[p.left].prev));
    PL_TRY(note_pair(b, p.left));
    if (step % 65536 == 65535) PL_TRY(plk_poll());
  }
  return PL_OK;
}

static void symbol(PlBpe *b, int32_t id, int32_t *k) {
  b->symbol[*k] = (PlSymbol){.id = id, .prev = *k - 1, .next = *k + 1};
  (*k)++;
}

/* The tokens of a character's bytes, if every byte has one. */
static bool by_bytes(PlBpe *b, const char *s, size_t n, int32_t *k) {
  for (size_t i = 0; i < n; i++)
    if (b->byte_id[(unsigned char)s[i]] < 0) return false;
  for (size_t i = 0; i < n; i++) symbol(b, b->byte_id[(unsigned char)s[i]], k);
  return true;
}

/* The first symbols: one a byte, or one a character. Those without a token become the tokens of their bytes, or the
 * unknown one, or nothing. An unknown one waits until a known character comes, as in the reference. */
static PlStatus first_symbols(PlBpe *b, const char *word, size_t n, int32_t *count) {
  if (n > INT32_MAX / 4) PL_FAIL(PL_ERR_ARG, "encode: a word of %zu bytes", n);
  PL_TRY(grow(&b->symbol, &b->symbol_room, n, sizeof *b->symbol));
  int32_t k = 0;
  bool waits = false;
  for (size_t i = 0, len; i < n; i += len) {
    len = b->chars ? pl_utf8_char(word + i, n - i) : 1;
    if (len == 0) len = 1;
    int32_t id = b->chars ? pl_bpe_find(b, word + i, len) : b->byte_id[(unsigned char)word[i]];
    if (id < 0 && b->chars && by_bytes(b, word + i, len, &k)) continue;
    if (id < 0 && b->unknown < 0) continue;
    if (waits && (id >= 0 || !b->fuse_unknown)) symbol(b, b->unknown, &k);
    waits = id < 0;
    if (id >= 0) symbol(b, id, &k);
  }
  if (waits) symbol(b, b->unknown, &k);
  if (k > 0) b->symbol[k - 1].next = -1;
  *count = k;
  return PL_OK;
}

/* The token that the whole word is, or -1. */
static int32_t whole_word(const PlBpe *b, const char *word, size_t n) {
  char text[512];
  size_t len = 0;
  if (b->chars) return pl_bpe_find(b, word, n);
  if (n > sizeof text / 2) return -1;
  for (size_t i = 0; i < n; i++) len += (size_t)pl_byte_char((uint8_t)word[i], text + len);
  return pl_bpe_find(b, text, len);
}

static PlStatus fresh_word(PlBpe *b, const char *word, size_t n, PlIds *out) {
  int32_t count, whole = b->whole_first ? whole_word(b, word, n) : -1;
  if (whole >= 0) return pl_ids_push(out, whole);
  PL_TRY(first_symbols(b, word, n, &count));
  PL_TRY(merge_all(b, count));
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = b->symbol[i].next) PL_TRY(pl_ids_push(out, b->symbol[i].id));
  return PL_OK;
}

PlStatus pl_bpe_word(PlBpe *b, const char *word, size_t n, PlIds *out) {
  if (n > CACHE_BYTES || n == 0) return n ? fresh_word(b, word, n, out) : PL_OK;
  if (!b->cache) b->cache = calloc(1, sizeof *b->cache); /* without memory: no cache */
  if (!b->cache) return fresh_word(b, word, n, out);
  CachedWord *c = &b->cache->w[hash(word, n) % CACHE_WORDS];
  if (c->len == n && memcmp(c->word, word, n) == 0) {
    for (int k = 0; k < c->nid; k++) PL_TRY(pl_ids_push(out, c->id[k]));
    return PL_OK;
  }
  size_t from = out->n;
  PL_TRY(fresh_word(b, word, n, out));
  if (out->n - from > CACHE_IDS) return PL_OK;
  c->len = (uint8_t)n;
  c->nid = (uint8_t)(out->n - from);
  memcpy(c->word, word, n);
  memcpy(c->id, out->v + from, (out->n - from) * sizeof *c->id);
  return PL_OK;
}

void pl_bpe_free(PlBpe *b) {
  for (int i = 0; i < b->nreplace; i++) {
    free(b->from[i]);
    free(b->into[i]);
  }
  free(b->token);
  free(b->arena);
  free(b->slot);
  free(b->merge);
  free(b->symbol);
  free(b->heap);
  free(b->cache);
}
