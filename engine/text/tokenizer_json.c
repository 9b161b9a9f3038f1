/* SPDX-License-Identifier: MIT
 * Reads tokenizer.json (the format of the Hugging Face tokenizers library) with Jansson, which keeps 64-bit integers and
 * refuses repeated keys. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/tokenizer_file.h"
#include "kernels/kernel.h"

#ifdef PL_HAVE_JANSSON
#include <jansson.h>

enum { MAX_ID = 1 << 24, MAX_JSON = 256 << 20, MAX_ADDED = 4096 /* bytes; each is a node of the trie */ };

typedef struct Reader {
  PlTokenizer *t;
  const char *name; /* of the file */
} Reader;

static PlStatus bad(const Reader *r, const char *what) { PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: %s", r->name, what); }

static PlStatus unsupported(const Reader *r, const char *what, const char *kind) {
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: %s '%.60s' is not supported; byte-level BPE is", r->name, what, kind ? kind : "?");
}

static const char *type_of(const json_t *o) { return json_string_value(json_object_get(o, "type")); }
static bool is_type(const json_t *o, const char *type) {
  const char *s = type_of(o);
  return s && strcmp(s, type) == 0;
}
static bool absent(const json_t *o) { return !o || json_is_null(o); }
static bool flag(const json_t *o, const char *key, bool def) {
  const json_t *v = json_object_get(o, key);
  return json_is_boolean(v) ? json_is_true(v) : def;
}

/* ---- model ---------------------------------------------------------------------------------------------------------- */

static PlStatus read_vocab(Reader *r, json_t *vocab) {
  const char *text;
  json_t *id;
  if (!json_is_object(vocab)) return bad(r, "model.vocab must be an object");
  size_t n = json_object_size(vocab);
  json_object_foreach(vocab, text, id) {
    json_int_t k = json_is_integer(id) ? json_integer_value(id) : -1;
    /* ids far above their number would make tables of nothing */
    if (k < 0 || k >= MAX_ID || (size_t)k > 4 * n + 65536) return bad(r, "an id in model.vocab");
    PL_TRY(pl_bpe_add(&r->t->bpe, k, text, strlen(text)));
  }
  return PL_OK;
}

/* ["a", "b"], or "a b" with its only blank between the two. */
static PlStatus merge_parts(Reader *r, const json_t *m, const char **a, size_t *na, const char **b, size_t *nb) {
  if (json_is_array(m) && json_array_size(m) == 2) {
    const json_t *x = json_array_get(m, 0), *y = json_array_get(m, 1);
    *a = json_string_value(x);
    *b = json_string_value(y);
    if (!*a || !*b) return bad(r, "a merge must be two strings");
    *na = json_string_length(x);
    *nb = json_string_length(y);
    return PL_OK;
  }
  const char *s = json_string_value(m), *blank = s ? strchr(s, ' ') : NULL;
  if (!blank || blank == s || !blank[1] || strchr(blank + 1, ' ')) return bad(r, "a merge must be two words");
  *a = s;
  *na = (size_t)(blank - s);
  *b = blank + 1;
  *nb = strlen(*b);
  return PL_OK;
}

static PlStatus read_merge(Reader *r, const json_t *m, int32_t rank) {
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
  if (left < 0 || right < 0 || id < 0) return bad(r, "a merge of tokens that are not in the vocabulary");
  pl_bpe_merge(bpe, left, right, rank, id);
  return PL_OK;
}

static PlStatus read_model(Reader *r, json_t *model) {
  if (!json_is_object(model)) return bad(r, "there is no model");
  /* old files leave the type out */
  if (type_of(model) && !is_type(model, "BPE")) return unsupported(r, "the model", type_of(model));
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  for (int i = 0; i < 2; i++) {
    const char *s = json_string_value(json_object_get(model, affixes[i]));
    if (s && *s) return unsupported(r, affixes[i], s);
  }
  if (flag(model, "byte_fallback", false)) return unsupported(r, "the model's option", "byte_fallback");
  json_t *merges = json_object_get(model, "merges");
  if (!json_is_array(merges)) return bad(r, "model.merges must be an array");
  PL_TRY(read_vocab(r, json_object_get(model, "vocab")));
  size_t n = json_array_size(merges);
  if (n > MAX_ID) return bad(r, "too many merges");
  PL_TRY(pl_bpe_ready(&r->t->bpe, n));
  for (size_t i = 0; i < n; i++) PL_TRY(read_merge(r, json_array_get(merges, i), (int32_t)i));
  const char *unknown = json_string_value(json_object_get(model, "unk_token"));
  r->t->bpe.unknown = unknown ? pl_bpe_find(&r->t->bpe, unknown, strlen(unknown)) : -1;
  r->t->bpe.whole_first = flag(model, "ignore_merges", false);
  return PL_OK;
}

/* ---- added tokens --------------------------------------------------------------------------------------------------- */

static PlStatus read_added(Reader *r, const json_t *list) {
  PlTokenizer *t = r->t;
  if (absent(list)) return PL_OK;
  if (!json_is_array(list)) return bad(r, "added_tokens must be an array");
  size_t n = json_array_size(list);
  t->added = calloc(n + 1, sizeof *t->added);
  if (!t->added) PL_FAIL(PL_ERR_OOM, "%s: out of memory", r->name);
  for (size_t i = 0; i < n; i++) {
    const json_t *o = json_array_get(list, i), *id = json_object_get(o, "id");
    const char *s = json_string_value(json_object_get(o, "content"));
    json_int_t k = json_is_integer(id) ? json_integer_value(id) : -1;
    if (!s || !*s || k < 0 || k >= MAX_ID || (size_t)k > (size_t)t->bpe.n + 4 * n + 65536) return bad(r, "an added token");
    size_t len = strlen(s);
    if (len > MAX_ADDED) return bad(r, "an added token of more than 4096 bytes");
    int32_t known = pl_bpe_find(&t->bpe, s, len);
    if (known >= 0 && known != k) return bad(r, "an added token with another id than in the vocabulary");
    if (known < 0) PL_TRY(pl_bpe_add(&t->bpe, k, s, len));
    PlAdded *a = &t->added[i];
    *a = (PlAdded){.id = (int32_t)k, .special = flag(o, "special", false), .lstrip = flag(o, "lstrip", false),
                   .rstrip = flag(o, "rstrip", false), .single_word = flag(o, "single_word", false),
                   .normalized = flag(o, "normalized", true)};
    t->bpe.token[k].special = a->special;
    PL_TRY(pl_trie_add(a->normalized ? &t->cooked : &t->raw, s, len, (int32_t)i));
    t->nadded++;
  }
  return PL_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------------ */

static PlStatus add_step(Reader *r, PlPattern *p) {
  if (r->t->nstep == PL_MAX_STEPS) {
    pl_pattern_release(p);
    return unsupported(r, "a pre_tokenizer of more steps than", "8");
  }
  r->t->step[r->t->nstep++].pattern = p;
  return PL_OK;
}

static PlStatus add_pattern(Reader *r, const char *regex, size_t n, PlCut cut) {
  PlPattern *p;
  PL_TRY(pl_pattern_new(&p, r->name, regex, n, cut));
  return add_step(r, p);
}

/* A text as an expression that matches it. */
static PlStatus add_literal(Reader *r, const char *s, PlCut cut) {
  size_t n = strlen(s), k = 0;
  char *quoted = n < 4096 ? malloc(2 * n + 1) : NULL;
  if (!quoted) return bad(r, "a pattern");
  for (size_t i = 0; i < n; i++) {
    unsigned char c = (unsigned char)s[i];
    bool plain = c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c <= ' ';
    if (!plain) quoted[k++] = '\\';
    quoted[k++] = s[i];
  }
  PlStatus st = add_pattern(r, quoted, k, cut);
  free(quoted);
  return st;
}

static PlStatus read_split(Reader *r, const json_t *o) {
  const json_t *pattern = json_object_get(o, "pattern");
  const char *behaviour = json_string_value(json_object_get(o, "behavior"));
  bool invert = flag(o, "invert", false);
  PlCut cut;
  if (behaviour && strcmp(behaviour, "Isolated") == 0) cut = PL_CUT_ISOLATED;
  else if (behaviour && strcmp(behaviour, "Removed") == 0) cut = invert ? PL_CUT_KEPT : PL_CUT_REMOVED;
  else return unsupported(r, "a Split with behavior", behaviour);
  const json_t *regex = json_object_get(pattern, "Regex");
  const char *literal = json_string_value(json_object_get(pattern, "String"));
  if (json_is_string(regex)) return add_pattern(r, json_string_value(regex), json_string_length(regex), cut);
  return literal && *literal ? add_literal(r, literal, cut) : bad(r, "a Split without pattern");
}

static PlStatus read_byte_level(Reader *r, const json_t *o) {
  if (flag(o, "add_prefix_space", true)) PL_TRY(add_step(r, NULL));
  if (!flag(o, "use_regex", true)) return PL_OK;
  return add_pattern(r, pl_gpt2_pattern, strlen(pl_gpt2_pattern), PL_CUT_ISOLATED);
}

static PlStatus read_digits(Reader *r, const json_t *o) {
  const char *regex = flag(o, "individual_digits", false) ? "\\p{N}" : "\\p{N}+";
  return add_pattern(r, regex, strlen(regex), PL_CUT_ISOLATED);
}

static PlStatus read_step(Reader *r, const json_t *o, bool *bytes) {
  if (is_type(o, "ByteLevel")) {
    *bytes = true;
    return read_byte_level(r, o);
  }
  if (is_type(o, "Split")) return read_split(r, o);
  if (is_type(o, "Digits")) return read_digits(r, o);
  return unsupported(r, "the pre_tokenizer", type_of(o));
}

static PlStatus read_steps(Reader *r, const json_t *pre) {
  bool bytes = false;
  if (!is_type(pre, "Sequence")) {
    if (absent(pre)) return unsupported(r, "the pre_tokenizer", "null");
    PL_TRY(read_step(r, pre, &bytes));
  } else {
    const json_t *list = json_object_get(pre, "pretokenizers");
    for (size_t i = 0; i < json_array_size(list); i++) {
      if (bytes) return unsupported(r, "a pre_tokenizer behind", "ByteLevel");
      PL_TRY(read_step(r, json_array_get(list, i), &bytes));
    }
  }
  return bytes ? PL_OK : unsupported(r, "a pre_tokenizer without", "ByteLevel");
}

/* ---- around a text --------------------------------------------------------------------------------------------------- */

static PlStatus push_special(Reader *r, const json_t *tokens, const char *id, PlIds *to) {
  const json_t *ids = json_object_get(json_object_get(tokens, id), "ids");
  for (size_t i = 0; i < json_array_size(ids); i++) {
    json_int_t k = json_integer_value(json_array_get(ids, i));
    if (k < 0 || k >= r->t->bpe.n || !r->t->bpe.token[k].present) return bad(r, "a special token of the post_processor");
    PL_TRY(pl_ids_push(to, (int32_t)k));
  }
  return json_array_size(ids) > 0 ? PL_OK : bad(r, "a special token of the post_processor");
}

static PlStatus read_template(Reader *r, const json_t *o) {
  const json_t *single = json_object_get(o, "single"), *tokens = json_object_get(o, "special_tokens");
  bool behind = false;
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *part = json_array_get(single, i), *special = json_object_get(part, "SpecialToken");
    if (json_object_get(part, "Sequence")) {
      if (behind) return bad(r, "a template with two texts");
      behind = true;
      continue;
    }
    const char *id = json_string_value(json_object_get(special, "id"));
    if (!id) return bad(r, "a template of the post_processor");
    PL_TRY(push_special(r, tokens, id, behind ? &r->t->behind : &r->t->before));
  }
  return PL_OK;
}

static PlStatus read_post(Reader *r, const json_t *o) {
  if (absent(o) || is_type(o, "ByteLevel")) return PL_OK; /* that one moves offsets only */
  if (is_type(o, "TemplateProcessing")) return read_template(r, o);
  if (!is_type(o, "Sequence")) return unsupported(r, "the post_processor", type_of(o));
  const json_t *list = json_object_get(o, "processors");
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *p = json_array_get(list, i);
    if (is_type(p, "Sequence")) return unsupported(r, "a post_processor inside", "Sequence");
    PL_TRY(read_post(r, p));
  }
  return PL_OK;
}

/* ---- the whole -------------------------------------------------------------------------------------------------------- */

static PlStatus read_all(Reader *r, json_t *root) {
  const json_t *normalizer = json_object_get(root, "normalizer"), *decoder = json_object_get(root, "decoder");
  if (!json_is_object(root)) return bad(r, "it must be an object");
  bool none = absent(normalizer) ||
              (is_type(normalizer, "Sequence") && json_array_size(json_object_get(normalizer, "normalizers")) == 0);
  if (!none) return unsupported(r, "the normalizer", type_of(normalizer));
  if (!absent(decoder) && !is_type(decoder, "ByteLevel")) return unsupported(r, "the decoder", type_of(decoder));
  PL_TRY(read_model(r, json_object_get(root, "model")));
  PL_TRY(read_added(r, json_object_get(root, "added_tokens")));
  PL_TRY(read_steps(r, json_object_get(root, "pre_tokenizer")));
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
    st = read_all(&(Reader){.t = t, .name = name}, root);
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
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: this build has no Jansson, so no tokenizers (install libjansson-dev and build again)",
          name);
}

#endif
