/* SPDX-License-Identifier: MIT
 * Tokenizers for lua/perilune/data/tokenizer.lua. Ids here are the file's, from 0; Lua's count from index_base. */
#include <stdlib.h>

#include "bindings/core/lib.h"
#include "engine/text/tokenizer.h"

static const HandleType tokenizer_type; /* below the methods */
static PlTokenizer *check_tokenizer(lua_State *L) { return l_check_handle(L, 1, &tokenizer_type); }

static int failure(lua_State *L, PlStatus s) {
  if (s != PL_ERR_FORMAT && s != PL_ERR_UNSUPPORTED) return l_fail(L, s);
  return l_failure(L, s);
}

/* tokenizer(json, name) -> tokenizer, or nil, message, code */
static int tokenizer_new(lua_State *L) {
  size_t n;
  const char *json = luaL_checklstring(L, 1, &n), *name = luaL_checkstring(L, 2);
  Handle *h = l_new_handle(L, &tokenizer_type);
  PlTokenizer *t = NULL;
  PlStatus s = pl_tokenizer_parse(&t, name, json, n);
  h->p = t;
  return s == PL_OK ? 1 : failure(L, s);
}

/* ---- encoding ------------------------------------------------------------------------------------------------------ */

static bool flag(lua_State *L, int i, const char *key) {
  lua_getfield(L, i, key);
  bool v = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return v;
}

static int64_t integer(lua_State *L, int i, const char *key, int64_t def) {
  lua_getfield(L, i, key);
  int64_t v = lua_isnil(L, -1) ? def : luaL_checkinteger(L, -1);
  lua_pop(L, 1);
  return v;
}

/* The table of options that lua/perilune/data/tokenizer.lua has checked. */
static PlEncodeOptions read_options(lua_State *L, int i) {
  luaL_checktype(L, i, LUA_TTABLE);
  PlEncodeOptions o = {
      .around = flag(L, i, "around"), .recognize = flag(L, i, "recognize"), .full = flag(L, i, "full"), .left = flag(L, i, "left")};
  o.max_length = integer(L, i, "max_length", -1);
  o.truncate = o.max_length >= 0;
  o.strategy = (PlTruncation)integer(L, i, "strategy", 0);
  return o;
}

/* Encodings of one call, freed with the userdata that holds them, whatever is raised meanwhile. */
typedef struct Encodings {
  PlEncoding *e;
  size_t n;
} Encodings;

static void release_encodings(void *p) {
  Encodings *a = p;
  if (!a) return;
  for (size_t i = 0; i < a->n; i++) pl_encoding_free(&a->e[i]);
  free(a->e);
  free(a);
}

static const luaL_Reg no_methods[] = {{NULL, NULL}};
static const HandleType encodings_type = {"perilune.encodings", "encodings", release_encodings, no_methods, 0};

/* Pushes the holder of n empty encodings. */
static Encodings *push_encodings(lua_State *L, size_t n) {
  Handle *h = l_new_handle(L, &encodings_type);
  Encodings *a = calloc(1, sizeof *a);
  if (a) a->e = calloc(n + 1, sizeof *a->e);
  if (!a || !a->e) {
    free(a);
    (void)l_fail(L, pl_fail(PL_ERR_OOM, "encode: out of memory"));
    return NULL;
  }
  a->n = n;
  h->p = a;
  return a;
}

/* Pushes an integer tensor of n ids. */
static void push_ids(lua_State *L, const int32_t *v, size_t n, int64_t base) {
  Box *b = l_new_box(L);
  int64_t shape = (int64_t)n;
  PlStatus s = pl_tensor_empty(&b->t, PL_I64, 1, &shape);
  if (s != PL_OK) (void)l_fail(L, s);
  for (size_t i = 0; i < n; i++) ((int64_t *)b->t->a.data)[i] = v[i] + base;
}

/* tokenizer:encode(text, index_base, options) -> i64 [n], or nil, message, code */
static int tokenizer_encode(lua_State *L) {
  const PlTokenizer *t = check_tokenizer(L);
  size_t n;
  const char *text = luaL_checklstring(L, 2, &n);
  int64_t base = luaL_checkinteger(L, 3);
  PlEncodeOptions o = read_options(L, 4);
  l_collect(L);
  Encodings *a = push_encodings(L, 1);
  PlStatus s = pl_tokenizer_encode(t, &o, text, n, NULL, 0, &a->e[0]);
  if (s != PL_OK) return failure(L, s);
  push_ids(L, a->e[0].id, a->e[0].n, base);
  return 1;
}

typedef struct Padding {
  bool left;
  int64_t n, id, type; /* tokens of a row */
} Padding;

/* An i64 tensor [rows, n] or [n]: what `get` says of each token, `pad` elsewhere. */
typedef int64_t (*GetFn)(const PlEncoding *e, size_t i, int64_t base);
static int64_t get_id(const PlEncoding *e, size_t i, int64_t base) { return e->id[i] + base; }
static int64_t get_type(const PlEncoding *e, size_t i, int64_t base) { return (void)base, e->type[i]; }
static int64_t get_mask(const PlEncoding *e, size_t i, int64_t base) { return (void)e, (void)i, (void)base, 1; }
static int64_t get_special(const PlEncoding *e, size_t i, int64_t base) { return (void)base, e->special[i]; }
static int64_t get_word(const PlEncoding *e, size_t i, int64_t base) { return e->word[i] + base; }
static int64_t get_text(const PlEncoding *e, size_t i, int64_t base) { return e->text[i] + base; }
static int64_t get_from(const PlEncoding *e, size_t i, int64_t base) { return e->from[i] + base; }
static int64_t get_to(const PlEncoding *e, size_t i, int64_t base) { return (void)base, e->to[i]; }

/* Sets field `key` of the table on top. With `second` the tensor has a last dimension of 2. */
static void set_field(lua_State *L, const char *key, const PlEncoding *e, size_t rows, bool one, const Padding *p, GetFn get, GetFn second,
                      int64_t base, int64_t pad) {
  Box *b = l_new_box(L);
  int64_t shape[3] = {(int64_t)rows, p->n, 2}, width = second ? 2 : 1;
  PlStatus s = pl_tensor_empty(&b->t, PL_I64, (one ? 1 : 2) + (second ? 1 : 0), shape + (one ? 1 : 0));
  if (s != PL_OK) (void)l_fail(L, s);
  int64_t *to = b->t->a.data;
  for (size_t r = 0; r < rows; r++) {
    int64_t n = (int64_t)e[r].n, skip = p->left ? p->n - n : 0;
    for (int64_t i = 0; i < p->n; i++, to += width) {
      bool there = i >= skip && i - skip < n;
      to[0] = there ? get(&e[r], (size_t)(i - skip), base) : pad;
      if (second) to[1] = there ? second(&e[r], (size_t)(i - skip), base) : 0;
    }
  }
  lua_setfield(L, -2, key);
}

static void set_tokens(lua_State *L, const PlTokenizer *t, const PlEncoding *e, const Padding *p) {
  size_t len = 0;
  bool special;
  const char *pad = pl_tokenizer_text(t, p->id, &len, &special);
  lua_createtable(L, (int)p->n, 0);
  int64_t n = (int64_t)e->n, skip = p->left ? p->n - n : 0;
  for (int64_t i = 0; i < p->n; i++) {
    int64_t k = i - skip;
    bool there = k >= 0 && k < n;
    size_t at = there && k > 0 ? e->value_end[k - 1] : 0;
    if (there) lua_pushlstring(L, e->value + at, e->value_end[k] - at);
    else lua_pushlstring(L, pad ? pad : "", pad ? len : 0);
    lua_rawseti(L, -2, i + 1);
  }
}

/* What a model takes of `rows` encodings: a table of tensors [rows, n], or [n] of one. */
static void push_fields(lua_State *L, const PlTokenizer *t, const PlEncoding *e, size_t rows, bool one, bool full, const Padding *p,
                        int64_t base) {
  lua_createtable(L, 0, 8);
  set_field(L, "input_ids", e, rows, one, p, get_id, NULL, base, p->id + base);
  set_field(L, "attention_mask", e, rows, one, p, get_mask, NULL, 0, 0);
  set_field(L, "token_type_ids", e, rows, one, p, get_type, NULL, 0, p->type);
  set_field(L, "special_tokens_mask", e, rows, one, p, get_special, NULL, 0, 1);
  if (!full) return;
  set_field(L, "offset_mapping", e, rows, one, p, get_from, get_to, base, base);
  set_field(L, "word_ids", e, rows, one, p, get_word, NULL, base, base - 1);
  set_field(L, "sequence_ids", e, rows, one, p, get_text, NULL, base, base - 1);
  if (!one) lua_createtable(L, (int)rows, 0);
  for (size_t r = 0; r < rows; r++) {
    set_tokens(L, t, &e[r], p);
    if (!one) lua_rawseti(L, -2, (lua_Integer)r + 1);
  }
  lua_setfield(L, -2, "tokens");
}

/* Texts at the index i of the stack: a list of strings; the arrays live as long as the userdata that is pushed. */
static const char **push_texts(lua_State *L, int i, size_t count, size_t **len) {
  const char **text = lua_newuserdatauv(L, (count + 1) * (sizeof *text + sizeof **len), 0);
  *len = (size_t *)(void *)(text + count + 1);
  for (size_t k = 0; k < count; k++) {
    lua_rawgeti(L, i, (lua_Integer)k + 1);
    text[k] = luaL_checklstring(L, -1, &(*len)[k]); /* the list keeps it */
    lua_pop(L, 1);
  }
  return text;
}

/* tokenizer:encode_many({text, …}, {pair, …} or nil, index_base, options) -> table of tensors: one of [n] for `one`, of [rows, n]
 * with `pads`, or a list of tables of [n]; or nil, message, code */
static int tokenizer_encode_many(lua_State *L) {
  const PlTokenizer *t = check_tokenizer(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  size_t rows = lua_rawlen(L, 2), *n, *npair = NULL;
  int64_t base = luaL_checkinteger(L, 4);
  PlEncodeOptions o = read_options(L, 5);
  bool one = flag(L, 5, "one"), pads = flag(L, 5, "pads");
  Padding p = {.left = flag(L, 5, "pads_left"), .id = integer(L, 5, "pad_id", 0), .type = integer(L, 5, "pad_type", 0)};
  int64_t multiple = integer(L, 5, "pad_multiple", 0), fixed = integer(L, 5, "pad_to", -1);
  const char **text = push_texts(L, 2, rows, &n), **pair = lua_isnil(L, 3) ? NULL : push_texts(L, 3, rows, &npair);
  l_collect(L);
  Encodings *a = push_encodings(L, rows);
  PlStatus s = pl_tokenizer_encode_many(t, &o, rows, text, n, pair, npair, a->e);
  if (s != PL_OK) return failure(L, s);
  int64_t longest = 0;
  for (size_t r = 0; r < rows; r++)
    if ((int64_t)a->e[r].n > longest) longest = (int64_t)a->e[r].n;
  int64_t to = fixed >= 0 ? fixed : longest;
  if (multiple > 0 && to % multiple) to += multiple - to % multiple;
  if (pads && fixed >= 0 && !one && longest > to)
    return l_error(L, "tokenizer: a text has %lld tokens, more than the %lld that rows are padded to; truncation=true cuts it",
                   (long long)longest, (long long)to);
  if (one || pads) {
    p.n = pads && to > longest ? to : longest;
    push_fields(L, t, a->e, rows, one, o.full, &p, base);
    return 1;
  }
  lua_createtable(L, (int)rows, 0);
  for (size_t r = 0; r < rows; r++) {
    p.n = (int64_t)a->e[r].n;
    push_fields(L, t, &a->e[r], 1, true, o.full, &p, base);
    lua_rawseti(L, -2, (lua_Integer)r + 1);
  }
  return 1;
}

/* tokenizer:defaults() -> {max_length=, left=, strategy=, pads=, pads_left=, pad_to=, pad_multiple=, pad_id=, pad_type=}, what the
 * file says; max_length and pads only where it says it */
static int tokenizer_defaults(lua_State *L) {
  const PlTokenizerDefaults *d = pl_tokenizer_defaults(check_tokenizer(L));
  const struct {
    const char *key;
    int64_t value;
  } all[] = {{"max_length", d->options.max_length},
             {"strategy", d->options.strategy},
             {"pad_to", d->pad_to},
             {"pad_multiple", d->pad_multiple},
             {"pad_id", d->pad_id},
             {"pad_type", d->pad_type}};
  lua_createtable(L, 0, 9);
  for (size_t i = d->options.truncate ? 0 : 1; i < sizeof all / sizeof *all; i++) {
    lua_pushinteger(L, all[i].value);
    lua_setfield(L, -2, all[i].key);
  }
  lua_pushboolean(L, d->options.left);
  lua_setfield(L, -2, "left");
  lua_pushboolean(L, d->pads);
  lua_setfield(L, -2, "pads");
  lua_pushboolean(L, d->pads_left);
  lua_setfield(L, -2, "pads_left");
  return 1;
}

/* Text from malloc as a string; freed whatever is raised. */
static const HandleType text_type = {"perilune.text", "text", free, no_methods, 0};
static int push_text(lua_State *L, Handle *h, size_t len) {
  lua_pushlstring(L, h->p, len);
  free(h->p);
  h->p = NULL;
  return 1;
}

/* ---- decoding ------------------------------------------------------------------------------------------------------ */

/* tokenizer:decode({id, …}, skip_special, index_base, keep bytes) -> text */
static int tokenizer_decode(lua_State *L) {
  const PlTokenizer *t = check_tokenizer(L);
  luaL_checktype(L, 2, LUA_TTABLE);
  bool skip = lua_toboolean(L, 3), keep = lua_toboolean(L, 5);
  int64_t base = luaL_checkinteger(L, 4);
  size_t n = lua_rawlen(L, 2), bad, len;
  int32_t *ids = lua_newuserdatauv(L, (n + 1) * sizeof *ids, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (lua_Integer)i + 1);
    int64_t id = 0;
    bool ok = l_to_int(L, lua_gettop(L), &id);
    lua_pop(L, 1);
    if (!ok) return l_error(L, "decode: id %d of the list is no integer", (int)i + 1);
    if (id < base || id - base >= pl_tokenizer_size(t))
      return l_error(L, "decode: there is no token with id %lld; ids are %lld to %lld", (long long)id, (long long)base,
                     (long long)(pl_tokenizer_size(t) - 1 + base));
    ids[i] = (int32_t)(id - base);
  }
  Handle *h = l_new_handle(L, &text_type);
  char *text = NULL;
  PlStatus s = pl_tokenizer_decode(t, ids, n, skip, keep, &text, &len, &bad);
  h->p = text;
  if (s == PL_ERR_ARG) return l_error(L, "decode: there is no token with id %lld", (long long)(ids[bad] + base));
  return s == PL_OK ? push_text(L, h, len) : failure(L, s);
}

/* tokenizer:normalize(text) -> text */
static int tokenizer_normalize(lua_State *L) {
  size_t n, len;
  const char *text = luaL_checklstring(L, 2, &n);
  char *out = NULL;
  Handle *h = l_new_handle(L, &text_type);
  PlStatus s = pl_tokenizer_normalized(check_tokenizer(L), text, n, &out, &len);
  h->p = out;
  return s == PL_OK ? push_text(L, h, len) : failure(L, s);
}

/* tokenizer:token(id, index_base) -> text or nil, whether it is special */
static int tokenizer_token(lua_State *L) {
  const PlTokenizer *t = check_tokenizer(L);
  int64_t id = luaL_checkinteger(L, 2) - luaL_checkinteger(L, 3);
  size_t n;
  bool special = false;
  const char *s = pl_tokenizer_text(t, id, &n, &special);
  if (!s) return 0;
  lua_pushlstring(L, s, n);
  lua_pushboolean(L, special);
  return 2;
}

/* tokenizer:id(text, index_base) -> id or nil */
static int tokenizer_id(lua_State *L) {
  size_t n;
  const char *s = luaL_checklstring(L, 2, &n);
  int64_t id = pl_tokenizer_id(check_tokenizer(L), s, n);
  if (id < 0) return 0;
  lua_pushinteger(L, id + luaL_checkinteger(L, 3));
  return 1;
}

static int tokenizer_size(lua_State *L) {
  lua_pushinteger(L, pl_tokenizer_size(check_tokenizer(L)));
  return 1;
}

static void release(void *p) { pl_tokenizer_release(p); }
static const luaL_Reg methods[] = {{"encode", tokenizer_encode},
                                   {"encode_many", tokenizer_encode_many},
                                   {"decode", tokenizer_decode},
                                   {"normalize", tokenizer_normalize},
                                   {"defaults", tokenizer_defaults},
                                   {"token", tokenizer_token},
                                   {"id", tokenizer_id},
                                   {"size", tokenizer_size},
                                   {NULL, NULL}};
static const HandleType tokenizer_type = {"perilune.tokenizer", "tokenizer", release, methods, 0};

void l_tokenizer_register(lua_State *L) {
  lua_pushcfunction(L, tokenizer_new);
  lua_setfield(L, -2, "tokenizer");
}
