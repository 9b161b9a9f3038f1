/* SPDX-License-Identifier: MIT
 * Reads tokenizer.json (the format of the Hugging Face tokenizers library) with Jansson, which keeps 64-bit integers and
 * refuses repeated keys. */
#include "engine/text/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

#ifdef PL_HAVE_JANSSON

PlStatus pl_tok_bad(const PlTokReader *r, const char *what) { PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: %s", r->name, what); }

PlStatus pl_tok_unsupported(const PlTokReader *r, const char *what, const char *kind) {
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: %s '%.60s' is not supported", r->name, what, kind ? kind : "?");
}

const char *pl_tok_type(const json_t *o) { return json_string_value(json_object_get(o, "type")); }
bool pl_tok_is(const json_t *o, const char *type) {
  const char *s = pl_tok_type(o);
  return s && strcmp(s, type) == 0;
}
bool pl_tok_absent(const json_t *o) { return !o || json_is_null(o); }

PlStatus pl_tok_flag(const PlTokReader *r, const json_t *o, const char *key, bool def, bool *out) {
  const json_t *v = json_object_get(o, key);
  *out = pl_tok_absent(v) ? def : json_is_true(v);
  if (!pl_tok_absent(v) && !json_is_boolean(v)) PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: %s must be true or false", r->name, key);
  return PL_OK;
}

PlStatus pl_tok_integer(const PlTokReader *r, const json_t *o, const char *key, json_int_t def, json_int_t low, json_int_t high,
                        json_int_t *out) {
  const json_t *v = json_object_get(o, key);
  *out = pl_tok_absent(v) ? def : json_is_integer(v) ? json_integer_value(v) : low - 1;
  if (!pl_tok_absent(v) && (*out < low || *out > high))
    PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: %s must be an integer from %lld to %lld", r->name, key, (long long)low,
            (long long)high);
  return PL_OK;
}

PlStatus pl_tok_word(const PlTokReader *r, const json_t *o, const char *key, const char **out) {
  const json_t *v = json_object_get(o, key);
  *out = json_string_value(v);
  if (!pl_tok_absent(v) && !*out) PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: %s must be a text", r->name, key);
  return PL_OK;
}

PlStatus pl_tok_copy(const PlTokReader *r, const json_t *o, const char *key, bool optional, char **out) {
  const json_t *v = json_object_get(o, key);
  const char *s = json_string_value(v);
  *out = NULL;
  if (optional && pl_tok_absent(v)) return PL_OK;
  if (!s || json_string_length(v) > PL_TOK_MAX_TEXT || strlen(s) != json_string_length(v))
    PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: %s must be a text", r->name, key);
  *out = strdup(s);
  if (!*out) PL_FAIL(PL_ERR_OOM, "%s: out of memory", r->name);
  return PL_OK;
}

static PlStatus read_added(PlTokReader *r, const json_t *list) {
  PlTokenizer *t = r->t;
  if (pl_tok_absent(list)) return PL_OK;
  if (!json_is_array(list)) return pl_tok_bad(r, "added_tokens must be an array");
  size_t n = json_array_size(list);
  for (size_t i = 0; i < n; i++) {
    const json_t *o = json_array_get(list, i), *id = json_object_get(o, "id"), *content = json_object_get(o, "content");
    const char *s = json_string_value(content);
    json_int_t k = json_is_integer(id) ? json_integer_value(id) : -1;
    if (!s || k < 0 || k >= PL_TOK_MAX_ID || (size_t)k > (size_t)t->model.vocab.n + 4 * n + 65536) return pl_tok_bad(r, "an added token");
    if (!*s) continue;
    if (json_string_length(content) > PL_TOK_MAX_TEXT) return pl_tok_bad(r, "an added token of more than 4096 bytes");
    PlAdded a = {.id = (int32_t)k};
    PL_TRY(pl_tok_flag(r, o, "special", false, &a.special));
    PL_TRY(pl_tok_flag(r, o, "lstrip", false, &a.lstrip));
    PL_TRY(pl_tok_flag(r, o, "rstrip", false, &a.rstrip));
    PL_TRY(pl_tok_flag(r, o, "single_word", false, &a.single_word));
    PL_TRY(pl_tok_flag(r, o, "normalized", true, &a.normalized));
    PL_TRY(pl_tokenizer_add(t, r->name, a, s, json_string_length(content)));
  }
  return PL_OK;
}

static PlStatus read_all(PlTokReader *r, const json_t *root) {
  if (!json_is_object(root)) return pl_tok_bad(r, "it must be an object");
  const char *version;
  PL_TRY(pl_tok_word(r, root, "version", &version));
  if (version && strcmp(version, "1.0") != 0) return pl_tok_unsupported(r, "the version", version);
  PL_TRY(pl_tok_read_normalizer(r, json_object_get(root, "normalizer"), 0));
  PL_TRY(pl_tok_read_model(r, json_object_get(root, "model")));
  PL_TRY(read_added(r, json_object_get(root, "added_tokens")));
  PL_TRY(pl_tok_read_pre_tokenizer(r, json_object_get(root, "pre_tokenizer"), 0));
  PL_TRY(pl_tok_read_decoder(r, json_object_get(root, "decoder"), 0));
  PL_TRY(pl_tokenizer_ready(r->t, r->name));
  PL_TRY(pl_tok_read_post(r, json_object_get(root, "post_processor")));
  return pl_tok_read_defaults(r, json_object_get(root, "truncation"), json_object_get(root, "padding"));
}

PlStatus pl_tokenizer_parse(PlTokenizer **out, const char *name, const char *json, size_t n) {
  json_error_t error;
  if (n > PL_TOK_MAX_JSON) PL_FAIL(PL_ERR_FORMAT, "%s: a tokenizer of %zu bytes", name, n);
  json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
  if (!root) PL_FAIL(PL_ERR_FORMAT, "%s: line %d: %s", name, error.line, error.text);
  PlTokenizer *t = NULL;
  PlStatus st = pl_tokenizer_new(&t, name);
  if (st == PL_OK) st = read_all(&(PlTokReader){.t = t, .name = name}, root);
  json_decref(root);
  if (st != PL_OK) {
    pl_tokenizer_release(t);
    return st;
  }
  *out = t;
  return PL_OK;
}

#else

PlStatus pl_tokenizer_parse(PlTokenizer **out, const char *name, const char *json, size_t n) {
  (void)out, (void)json, (void)n;
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: this build has no Jansson, so no tokenizer.json (install libjansson-dev and build again)", name);
}

#endif
