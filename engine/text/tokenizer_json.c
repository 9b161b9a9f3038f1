/* SPDX-License-Identifier: MIT
 * Reads tokenizer.json (the format of the Hugging Face tokenizers library) with Jansson, which keeps 64-bit integers and
 * refuses repeated keys. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_json.h"
#include "kernels/kernel.h"

#ifdef PL_HAVE_JANSSON

enum { MAX_ID = 1 << 24, MAX_JSON = 256 << 20, MAX_ADDED = 4096 /* bytes; each is a node of the trie */ };

PlStatus pl_tok_bad(const PlTokReader *r, const char *what) { PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: %s", r->name, what); }

PlStatus pl_tok_unsupported(const PlTokReader *r, const char *what, const char *kind) {
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: %s '%.60s' is not supported; byte pair encoding of bytes or characters is", r->name, what,
          kind ? kind : "?");
}

const char *pl_tok_type(const json_t *o) { return json_string_value(json_object_get(o, "type")); }
bool pl_tok_is(const json_t *o, const char *type) {
  const char *s = pl_tok_type(o);
  return s && strcmp(s, type) == 0;
}
bool pl_tok_absent(const json_t *o) { return !o || json_is_null(o); }
bool pl_tok_flag(const json_t *o, const char *key, bool def) {
  const json_t *v = json_object_get(o, key);
  return json_is_boolean(v) ? json_is_true(v) : def;
}

/* ---- model ---------------------------------------------------------------------------------------------------------- */

static PlStatus read_vocab(PlTokReader *r, json_t *vocab) {
  const char *text;
  json_t *id;
  if (!json_is_object(vocab)) return pl_tok_bad(r, "model.vocab must be an object");
  size_t n = json_object_size(vocab);
  json_object_foreach(vocab, text, id) {
    json_int_t k = json_is_integer(id) ? json_integer_value(id) : -1;
    /* ids far above their number would make tables of nothing */
    if (k < 0 || k >= MAX_ID || (size_t)k > 4 * n + 65536) return pl_tok_bad(r, "an id in model.vocab");
    PL_TRY(pl_bpe_add(&r->t->bpe, k, text, strlen(text)));
  }
  return PL_OK;
}

/* ["a", "b"], or "a b" with its only blank between the two. */
static PlStatus merge_parts(PlTokReader *r, const json_t *m, const char **a, size_t *na, const char **b, size_t *nb) {
  if (json_is_array(m) && json_array_size(m) == 2) {
    const json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
    *a = json_string_value(x);
    *b = json_string_value(y);
    if (!*a || !*b) return pl_tok_bad(r, "a merge must be two strings");
    *na = json_string_length(x);
    *nb = json_string_length(y);
    return PL_OK;
  }
  const char *s = json_string_value(m), *blank = s ? strchr(s, ' ') : NULL;
  if (!blank || blank == s || !blank[1] || strchr(blank + 1, ' ')) return pl_tok_bad(r, "a merge must be two words");
  *a = s;
  *na = (size_t)(blank - s);
  *b = blank + 1;
  *nb = strlen(*b);
  return PL_OK;
}

static PlStatus read_merge(PlTokReader *r, const json_t *m, int32_t rank) {
  const char *a = NULL, *b = NULL;
  size_t na = 0, nb = 0;
  PlBpe *bpe = &r->t->bpe;
  PL_TRY(merge_parts(r, m, &a, &na, &b, &nb));
  char *both = malloc(na + nb + 1);
  if (!both) PL_FAIL(PL_ERR_OOM, "%s: out of memory", r->name);
  memcpy(both, a, na);
  memcpy(both + na, b, nb);
  int32_t left = pl_bpe_find(bpe, a, na), right = pl_bpe_find(bpe, b, nb), id = pl_bpe_find(bpe, both, na + nb);
  free(both);
  if (left < 0 || right < 0 || id < 0) return pl_tok_bad(r, "a merge of tokens that are not in the vocabulary");
  pl_bpe_merge(bpe, left, right, rank, id);
  return PL_OK;
}

static PlStatus read_model(PlTokReader *r, json_t *model) {
  if (!json_is_object(model)) return pl_tok_bad(r, "there is no model");
  /* old files leave the type out */
  if (pl_tok_type(model) && !pl_tok_is(model, "BPE")) return pl_tok_unsupported(r, "the model", pl_tok_type(model));
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (int i = 0; i < 2; i++) {
    const char *s = json_string_value(json_object_get(model, affixes[i]));
    if (s && *s) return pl_tok_unsupported(r, affixes[i], s);
  }
  bool fallback = pl_tok_flag(model, "byte_fallback", false);
  if (fallback && !r->t->bpe.chars) return pl_tok_unsupported(r, "with ByteLevel the model's option", "byte_fallback");
  json_t *merges = json_object_get(model, "merges");
  if (!json_is_array(merges)) return pl_tok_bad(r, "model.merges must be an array");
  PL_TRY(read_vocab(r, json_object_get(model, "vocab")));
  size_t n = json_array_size(merges);
  if (n > MAX_ID) return pl_tok_bad(r, "too many merges");
  PL_TRY(pl_bpe_ready(&r->t->bpe, n, fallback));
  for (size_t i = 0; i < n; i++) PL_TRY(read_merge(r, json_array_get(merges, i), (int32_t)i));
  const char *unknown = json_string_value(json_object_get(model, "unk_token"));
  r->t->bpe.unknown = unknown ? pl_bpe_find(&r->t->bpe, unknown, strlen(unknown)) : -1;
  r->t->bpe.fuse_unknown = pl_tok_flag(model, "fuse_unk", false);
  r->t->bpe.whole_first = pl_tok_flag(model, "ignore_merges", false);
  return PL_OK;
}

/* ---- added tokens --------------------------------------------------------------------------------------------------- */

/* Into the trie where it is looked for; in normalized text it is normalized. */
static PlStatus find_added(PlTokenizer *t, const char *s, size_t n, int32_t i) {
  if (!t->added[i].normalized || t->nnorm == 0) return pl_trie_add(t->added[i].normalized ? &t->cooked : &t->raw, s, n, i);
  char *text;
  size_t len;
  bool from_left;
  PL_TRY(pl_normalize(t->norm, t->nnorm, s, n, &text, &len, &from_left));
  PlStatus st = len > 0 ? pl_trie_add(&t->cooked, text, len, i) : PL_OK;
  if (st == PL_OK) st = pl_bpe_means(&t->bpe, t->added[i].id, text, len);
  free(text);
  return st;
}

static PlStatus read_added(PlTokReader *r, const json_t *list) {
  PlTokenizer *t = r->t;
  if (pl_tok_absent(list)) return PL_OK;
  if (!json_is_array(list)) return pl_tok_bad(r, "added_tokens must be an array");
  size_t n = json_array_size(list);
  t->added = calloc(n + 1, sizeof *t->added);
  if (!t->added) PL_FAIL(PL_ERR_OOM, "%s: out of memory", r->name);
  for (size_t i = 0; i < n; i++) {
    const json_t *o = json_array_get(list, i), *id = json_object_get(o, "id");
    const char *s = json_string_value(json_object_get(o, "content"));
    json_int_t k = json_is_integer(id) ? json_integer_value(id) : -1;
    if (!s || !*s || k < 0 || k >= MAX_ID || (size_t)k > (size_t)t->bpe.n + 4 * n + 65536) return pl_tok_bad(r, "an added token");
    size_t len = strlen(s);
    if (len > MAX_ADDED) return pl_tok_bad(r, "an added token of more than 4096 bytes");
    int32_t known = pl_bpe_find(&t->bpe, s, len);
    if (known >= 0 && known != k) return pl_tok_bad(r, "an added token with another id than in the vocabulary");
    if (known < 0) PL_TRY(pl_bpe_add(&t->bpe, k, s, len));
    PlAdded *a = &t->added[i];
    *a = (PlAdded){.id = (int32_t)k,
                   .special = pl_tok_flag(o, "special", false),
                   .lstrip = pl_tok_flag(o, "lstrip", false),
                   .rstrip = pl_tok_flag(o, "rstrip", false),
                   .single_word = pl_tok_flag(o, "single_word", false),
                   .normalized = pl_tok_flag(o, "normalized", true)};
    t->bpe.token[k].special = a->special;
    PL_TRY(find_added(t, s, len, (int32_t)i));
    t->nadded++;
  }
  return PL_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------ */

static PlStatus add_step(PlTokReader *r, PlStep step) {
  if (r->t->nstep == PL_MAX_STEPS) {
    pl_pattern_release(step.pattern);
    return pl_tok_unsupported(r, "a pre_tokenizer of more steps than", "8");
  }
  r->t->step[r->t->nstep++] = step;
  return PL_OK;
}

static PlStatus add_pattern(PlTokReader *r, const char *regex, size_t n, PlCut cut) {
  PlPattern *p;
  PL_TRY(pl_pattern_new(&p, r->name, regex, n, cut));
  return add_step(r, (PlStep){.pattern = p});
}

/* A text as an expression that matches it. */
static PlStatus literal_pattern(const PlTokReader *r, const char *s, PlCut cut, PlPattern **out) {
  size_t n = strlen(s), k = 0;
  char *quoted = n < 4096 ? malloc(2 * n + 1) : NULL;
  if (!quoted) return pl_tok_bad(r, "a pattern");
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)s[i];
    bool plain = c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c <= ' ';
    if (!plain) quoted[k++] = '\\';
    quoted[k++] = s[i];
  }
  PlStatus st = pl_pattern_new(out, r->name, quoted, k, cut);
  free(quoted);
  return st;
}

PlStatus pl_tok_pattern(const PlTokReader *r, const json_t *pattern, PlCut cut, PlPattern **out) {
  const json_t *regex = json_object_get(pattern, "Regex");
  const char *literal = json_string_value(json_object_get(pattern, "String"));
  if (json_is_string(regex)) return pl_pattern_new(out, r->name, json_string_value(regex), json_string_length(regex), cut);
  return literal && *literal ? literal_pattern(r, literal, cut, out) : pl_tok_bad(r, "a step without pattern");
}

static PlStatus read_split(PlTokReader *r, const json_t *o) {
  static const struct {
    const char *name;
    PlCut cut, inverted;
    bool invertible;
  } kinds[] = {{"Isolated", PL_CUT_ISOLATED, PL_CUT_ISOLATED, true},
               {"Removed", PL_CUT_REMOVED, PL_CUT_KEPT, true},
               {"MergedWithNext", PL_CUT_BEFORE, PL_CUT_BEFORE, false},
               {"MergedWithPrevious", PL_CUT_BEHIND, PL_CUT_BEHIND, false}};
  const char *behaviour = json_string_value(json_object_get(o, "behavior"));
  const bool invert = pl_tok_flag(o, "invert", false);
  for (size_t i = 0; behaviour && i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(behaviour, kinds[i].name) != 0) continue;
    if (invert && !kinds[i].invertible) return pl_tok_unsupported(r, "an inverted Split with behavior", behaviour);
    PlPattern *p;
    PL_TRY(pl_tok_pattern(r, json_object_get(o, "pattern"), invert ? kinds[i].inverted : kinds[i].cut, &p));
    return add_step(r, (PlStep){.pattern = p});
  }
  return pl_tok_unsupported(r, "a Split with behavior", behaviour);
}

static PlStatus read_byte_level(PlTokReader *r, const json_t *o) {
  if (pl_tok_flag(o, "add_prefix_space", true)) PL_TRY(add_step(r, (PlStep){.text = " ", .prepend = true}));
  if (!pl_tok_flag(o, "use_regex", true)) return PL_OK;
  return add_pattern(r, pl_gpt2_pattern, strlen(pl_gpt2_pattern), PL_CUT_ISOLATED);
}

static PlStatus read_digits(PlTokReader *r, const json_t *o) {
  const char *regex = pl_tok_flag(o, "individual_digits", false) ? "\\p{N}" : "\\p{N}+";
  return add_pattern(r, regex, strlen(regex), PL_CUT_ISOLATED);
}

/* Blanks become a visible character, which also begins the text or every piece; pieces begin with it. */
static PlStatus read_metaspace(PlTokReader *r, const json_t *o) {
  const char *text = json_string_value(json_object_get(o, "replacement"));
  const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
  if (!scheme) scheme = pl_tok_flag(o, "add_prefix_space", true) ? "always" : "never";
  PlStep step = {.blanks = true, .prepend = strcmp(scheme, "never") != 0, .first = strcmp(scheme, "first") == 0};
  if (!text || !*text || strlen(text) >= sizeof step.text) return pl_tok_bad(r, "the replacement of Metaspace");
  memcpy(step.text, text, strlen(text));
  PL_TRY(add_step(r, step));
  if (!pl_tok_flag(o, "split", true)) return PL_OK;
  PlPattern *p;
  PL_TRY(literal_pattern(r, text, PL_CUT_BEFORE, &p));
  return add_step(r, (PlStep){.pattern = p});
}

static PlStatus read_step(PlTokReader *r, const json_t *o) {
  /* \w of the reference's expressions (Unicode TR18, annex C), which is more than PCRE2's */
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}"
  static const char words[] = "[" WORD "]+|[^" WORD "\\s]+";
  if (pl_tok_is(o, "ByteLevel")) return read_byte_level(r, o);
  if (pl_tok_is(o, "Split")) return read_split(r, o);
  if (pl_tok_is(o, "Digits")) return read_digits(r, o);
  if (pl_tok_is(o, "Metaspace")) return read_metaspace(r, o);
  if (pl_tok_is(o, "Whitespace")) return add_pattern(r, words, sizeof words - 1, PL_CUT_KEPT);
  if (pl_tok_is(o, "WhitespaceSplit")) return add_pattern(r, "\\s+", 3, PL_CUT_REMOVED);
  return pl_tok_unsupported(r, "the pre_tokenizer", pl_tok_type(o));
}

static PlStatus read_steps(PlTokReader *r, const json_t *pre) {
  if (pl_tok_absent(pre)) return PL_OK;
  if (!pl_tok_is(pre, "Sequence")) return read_step(r, pre);
  const json_t *list = json_object_get(pre, "pretokenizers");
  for (size_t i = 0; i < json_array_size(list); i++) {
    if (i > 0 && pl_tok_is(json_array_get(list, i - 1), "ByteLevel")) return pl_tok_unsupported(r, "a pre_tokenizer behind", "ByteLevel");
    PL_TRY(read_step(r, json_array_get(list, i)));
  }
  return PL_OK;
}

/* Whether words are made of bytes in their alphabet, or of characters. */
static bool has_byte_level(const json_t *pre) {
  const json_t *list = json_object_get(pre, "pretokenizers");
  for (size_t i = 0; i < json_array_size(list); i++)
    if (pl_tok_is(json_array_get(list, i), "ByteLevel")) return true;
  return pl_tok_is(pre, "ByteLevel");
}

/* ---- around a text --------------------------------------------------------------------------------------------------- */

static PlStatus push_special(PlTokReader *r, const json_t *tokens, const char *id, PlIds *to) {
  const json_t *ids = json_object_get(json_object_get(tokens, id), "ids");
  for (size_t i = 0; i < json_array_size(ids); i++) {
    json_int_t k = json_integer_value(json_array_get(ids, i));
    if (k < 0 || k >= r->t->bpe.n || !r->t->bpe.token[k].present) return pl_tok_bad(r, "a special token of the post_processor");
    PL_TRY(pl_ids_push(to, (int32_t)k));
  }
  return json_array_size(ids) > 0 ? PL_OK : pl_tok_bad(r, "a special token of the post_processor");
}

static PlStatus read_template(PlTokReader *r, const json_t *o) {
  const json_t *single = json_object_get(o, "single"), *tokens = json_object_get(o, "special_tokens");
  bool behind = false;
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *part = json_array_get(single, i), *special = json_object_get(part, "SpecialToken");
    if (json_object_get(part, "Sequence")) {
      if (behind) return pl_tok_bad(r, "a template with two texts");
      behind = true;
      continue;
    }
    const char *id = json_string_value(json_object_get(special, "id"));
    if (!id) return pl_tok_bad(r, "a template of the post_processor");
    PL_TRY(push_special(r, tokens, id, behind ? &r->t->behind : &r->t->before));
  }
  return PL_OK;
}

static PlStatus read_post(PlTokReader *r, const json_t *o) {
  if (pl_tok_absent(o) || pl_tok_is(o, "ByteLevel")) return PL_OK; /* that one moves offsets only */
  if (pl_tok_is(o, "TemplateProcessing")) return read_template(r, o);
  if (!pl_tok_is(o, "Sequence")) return pl_tok_unsupported(r, "the post_processor", pl_tok_type(o));
  const json_t *list = json_object_get(o, "processors");
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *p = json_array_get(list, i);
    if (pl_tok_is(p, "Sequence")) return pl_tok_unsupported(r, "a post_processor inside", "Sequence");
    PL_TRY(read_post(r, p));
  }
  return PL_OK;
}

/* ---- the whole -------------------------------------------------------------------------------------------------------- */

static PlStatus read_all(PlTokReader *r, json_t *root) {
  if (!json_is_object(root)) return pl_tok_bad(r, "it must be an object");
  const json_t *pre = json_object_get(root, "pre_tokenizer");
  r->t->bpe.chars = !has_byte_level(pre);
  PL_TRY(pl_tok_read_normalizer(r, json_object_get(root, "normalizer")));
  PL_TRY(pl_tok_read_decoder(r, json_object_get(root, "decoder")));
  PL_TRY(read_model(r, json_object_get(root, "model")));
  PL_TRY(read_added(r, json_object_get(root, "added_tokens")));
  PL_TRY(read_steps(r, pre));
  return read_post(r, json_object_get(root, "post_processor"));
}

PlStatus pl_tokenizer_parse(PlTokenizer **out, const char *name, const char *json, size_t n) {
  json_error_t error;
  if (n > MAX_JSON) PL_FAIL(PL_ERR_FORMAT, "%s: a tokenizer of %zu bytes", name, n);
  json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &error);
  if (!root) PL_FAIL(PL_ERR_FORMAT, "%s: line %d: %s", name, error.line, error.text);
  PlTokenizer *t = calloc(1, sizeof *t);
  PlStatus st = PL_OK;
  if (!t) {
    st = pl_fail(PL_ERR_OOM, "%s: out of memory", name);
  } else {
    t->bpe.unknown = -1;
    st = read_all(&(PlTokReader){.t = t, .name = name}, root);
  }
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
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: this build has no Jansson, so no tokenizers (install libjansson-dev and build again)", name);
}

#endif
