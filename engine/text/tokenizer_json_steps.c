/* SPDX-License-Identifier: MIT
 * The normalizer, the pre_tokenizer and the decoder of a tokenizer.json file. */
#include "engine/text/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/characters.h"

#ifdef PL_HAVE_JANSSON

static PlStatus need_tables(const PlTokReader *r, const json_t *o) {
  if (pl_char_tables()) return PL_OK;
  PL_FAIL(PL_ERR_UNSUPPORTED, "%s: this build has no utf8proc, so no '%s' (install libutf8proc-dev and build again)", r->name,
          pl_tok_type(o));
}

static PlStatus deeper(const PlTokReader *r, int depth) {
  return depth < PL_TOK_MAX_DEPTH ? PL_OK : pl_tok_bad(r, "a Sequence inside too many others");
}

/* One character of UTF-8. */
static PlStatus character(const PlTokReader *r, const json_t *o, const char *key, char **out) {
  size_t len;
  PL_TRY(pl_tok_copy(r, o, key, false, out));
  if (**out && pl_char_at(*out, strlen(*out), &len) >= 0 && len == strlen(*out)) return PL_OK;
  PL_FAIL(PL_ERR_FORMAT, "%s: malformed tokenizer: %s must be one character", r->name, key);
}

/* {"Regex": …} or {"String": …}. */
static PlStatus read_pattern(const PlTokReader *r, const json_t *o, PlPattern **out) {
  const json_t *pattern = json_object_get(o, "pattern"), *regex = json_object_get(pattern, "Regex"),
               *literal = json_object_get(pattern, "String");
  if (json_is_string(regex)) return pl_pattern_new(out, r->name, json_string_value(regex), json_string_length(regex));
  if (!json_is_string(literal) || json_string_length(literal) == 0) return pl_tok_bad(r, "a step without pattern");
  return pl_pattern_literal(out, r->name, json_string_value(literal), json_string_length(literal));
}

/* ---- normalizer ----------------------------------------------------------------------------------------------------- */

static PlStatus next_norm(PlTokReader *r, PlNormKind kind, PlNormStep **out) {
  if (r->t->nnorm == PL_MAX_STEPS) return pl_tok_bad(r, "a normalizer of more than 24 steps");
  *out = &r->t->norm[r->t->nnorm++]; /* what it owns is freed with the tokenizer */
  **out = (PlNormStep){.kind = kind};
  return PL_OK;
}

/* clean_text, handle_chinese_chars, strip_accents (as lowercase where it is null), lowercase. */
static PlStatus read_bert(PlTokReader *r, const json_t *o) {
  bool clean, chinese, accents, lower;
  PlNormStep *s = NULL;
  PL_TRY(pl_tok_flag(r, o, "clean_text", true, &clean));
  PL_TRY(pl_tok_flag(r, o, "handle_chinese_chars", true, &chinese));
  PL_TRY(pl_tok_flag(r, o, "lowercase", true, &lower));
  PL_TRY(pl_tok_flag(r, o, "strip_accents", lower, &accents));
  if (clean) PL_TRY(next_norm(r, PL_NORM_CLEAN, &s));
  if (chinese) PL_TRY(next_norm(r, PL_NORM_IDEOGRAPHS, &s));
  if (accents) PL_TRY(next_norm(r, PL_NORM_NFD, &s));
  if (accents) PL_TRY(next_norm(r, PL_NORM_NO_MARKS, &s));
  return lower ? next_norm(r, PL_NORM_LOWER, &s) : PL_OK;
}

static PlStatus fill_norm(PlTokReader *r, const json_t *o, PlNormStep *s) {
  switch (s->kind) {
  case PL_NORM_STRIP: PL_TRY(pl_tok_flag(r, o, "strip_left", true, &s->left)); return pl_tok_flag(r, o, "strip_right", true, &s->right);
  case PL_NORM_PREPEND: PL_TRY(pl_tok_copy(r, o, "prepend", false, &s->text)); break;
  case PL_NORM_REPLACE:
    PL_TRY(pl_tok_copy(r, o, "content", false, &s->text));
    PL_TRY(read_pattern(r, o, &s->pattern));
    break;
  case PL_NORM_CHARSMAP: {
    const json_t *map = json_object_get(o, "precompiled_charsmap");
    if (!json_is_string(map)) return pl_tok_bad(r, "precompiled_charsmap must be a text");
    return pl_charsmap_base64(&s->map, r->name, json_string_value(map), json_string_length(map));
  }
  default: return PL_OK;
  }
  s->n = strlen(s->text);
  return PL_OK;
}

PlStatus pl_tok_read_normalizer(PlTokReader *r, const json_t *o, int depth) {
  static const struct {
    const char *type;
    PlNormKind kind;
  } kinds[] = {{"NFC", PL_NORM_NFC},         {"NFD", PL_NORM_NFD},
               {"NFKC", PL_NORM_NFKC},       {"NFKD", PL_NORM_NFKD},
               {"Lowercase", PL_NORM_LOWER}, {"StripAccents", PL_NORM_NO_ACCENTS},
               {"Nmt", PL_NORM_NMT},         {"Precompiled", PL_NORM_CHARSMAP},
               {"ByteLevel", PL_NORM_BYTES}, {"Strip", PL_NORM_STRIP},
               {"Prepend", PL_NORM_PREPEND}, {"Replace", PL_NORM_REPLACE}};
  if (pl_tok_absent(o)) return PL_OK;
  if (pl_tok_is(o, "Sequence")) {
    const json_t *list = json_object_get(o, "normalizers");
    PL_TRY(deeper(r, depth));
    if (!json_is_array(list)) return pl_tok_bad(r, "normalizers must be an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
      if (pl_tok_absent(json_array_get(list, i))) return pl_tok_bad(r, "a normalizer is null");
      PL_TRY(pl_tok_read_normalizer(r, json_array_get(list, i), depth + 1));
    }
    return PL_OK;
  }
  if (pl_tok_is(o, "BertNormalizer")) {
    PL_TRY(need_tables(r, o));
    return read_bert(r, o);
  }
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!pl_tok_is(o, kinds[i].type)) continue;
    if (pl_norm_needs_tables(kinds[i].kind)) PL_TRY(need_tables(r, o));
    PlNormStep *s = NULL;
    PL_TRY(next_norm(r, kinds[i].kind, &s));
    return fill_norm(r, o, s);
  }
  return pl_tok_unsupported(r, "the normalizer", pl_tok_type(o));
}

/* ---- pre_tokenizer -------------------------------------------------------------------------------------------------- */

static PlStatus next_step(PlTokReader *r, PlStepKind kind, PlStep **out) {
  if (r->t->nstep == PL_MAX_STEPS) return pl_tok_bad(r, "a pre_tokenizer of more than 24 steps");
  *out = &r->t->step[r->t->nstep++];
  **out = (PlStep){.kind = kind, .cut = PL_CUT_ISOLATED};
  return PL_OK;
}

static PlStatus read_behaviour(const PlTokReader *r, const json_t *o, const char *def, PlCut *cut) {
  static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const json_t *v = json_object_get(o, "behavior");
  const char *s = pl_tok_absent(v) ? def : json_string_value(v);
  for (size_t i = 0; s && i < sizeof names / sizeof *names; i++)
    if (strcmp(s, names[i]) == 0) return *cut = (PlCut)i, PL_OK;
  return pl_tok_unsupported(r, "the behavior", s);
}

static PlStatus read_byte_level(PlTokReader *r, const json_t *o) {
  bool prefix, regex;
  PlStep *s = NULL;
  PL_TRY(pl_tok_flag(r, o, "add_prefix_space", true, &prefix));
  PL_TRY(pl_tok_flag(r, o, "use_regex", true, &regex));
  if (prefix) PL_TRY(next_step(r, PL_STEP_PREFIX, &s));
  if (regex) {
    PL_TRY(next_step(r, PL_STEP_CUT, &s));
    PL_TRY(pl_pattern_new(&s->pattern, r->name, pl_gpt2_pattern, strlen(pl_gpt2_pattern)));
  }
  return next_step(r, PL_STEP_BYTES, &s);
}

/* Blanks become a visible character, which also begins the text or every piece; pieces begin with it. */
static PlStatus read_metaspace(PlTokReader *r, const json_t *o) {
  const json_t *scheme = json_object_get(o, "prepend_scheme"), *old = json_object_get(o, "add_prefix_space");
  const char *name = pl_tok_absent(scheme) ? "always" : json_string_value(scheme);
  bool prefix, split;
  char *text;
  PlStep *s = NULL;
  PL_TRY(pl_tok_flag(r, o, "add_prefix_space", true, &prefix));
  PL_TRY(pl_tok_flag(r, o, "split", true, &split));
  if (!name || (strcmp(name, "always") != 0 && strcmp(name, "first") != 0 && strcmp(name, "never") != 0))
    return pl_tok_unsupported(r, "the prepend_scheme", name);
  if (!prefix && !pl_tok_absent(old) && !pl_tok_absent(scheme) && strcmp(name, "never") != 0)
    return pl_tok_bad(r, "add_prefix_space does not fit prepend_scheme");
  PL_TRY(next_step(r, PL_STEP_METASPACE, &s));
  PlStatus st = character(r, o, "replacement", &text);
  if (st == PL_OK) memcpy(s->text, text, strlen(text) + 1);
  free(text);
  PL_TRY(st);
  s->prepend = prefix && strcmp(name, "never") != 0;
  s->first = strcmp(name, "first") == 0;
  const char *at = s->text;
  if (!split) return PL_OK;
  PL_TRY(next_step(r, PL_STEP_CUT, &s));
  s->cut = PL_CUT_NEXT;
  return pl_pattern_literal(&s->pattern, r->name, at, strlen(at));
}

static PlStatus read_class(PlTokReader *r, const json_t *o, bool (*is)(int32_t), PlCut cut) {
  PlStep *s = NULL;
  if (is != pl_char_is_space) PL_TRY(need_tables(r, o));
  PL_TRY(next_step(r, PL_STEP_CUT, &s));
  s->is = is;
  s->cut = cut;
  return PL_OK;
}

static PlStatus read_split(PlTokReader *r, const json_t *o) {
  PlStep *s = NULL;
  PL_TRY(next_step(r, PL_STEP_CUT, &s));
  PL_TRY(read_behaviour(r, o, NULL, &s->cut));
  PL_TRY(pl_tok_flag(r, o, "invert", false, &s->invert));
  return read_pattern(r, o, &s->pattern);
}

static PlStatus read_delimiter(PlTokReader *r, const json_t *o) {
  PlStep *s = NULL;
  char *text;
  PL_TRY(next_step(r, PL_STEP_CUT, &s));
  s->cut = PL_CUT_REMOVED;
  PlStatus st = character(r, o, "delimiter", &text);
  if (st == PL_OK) st = pl_pattern_literal(&s->pattern, r->name, text, strlen(text));
  free(text);
  return st;
}

static PlStatus read_small_step(PlTokReader *r, const json_t *o) {
  PlStep *s = NULL;
  PlCut cut = PL_CUT_ISOLATED;
  bool single;
  json_int_t count;
  if (pl_tok_is(o, "BertPreTokenizer")) {
    PL_TRY(read_class(r, o, pl_char_is_space, PL_CUT_REMOVED));
    return read_class(r, o, pl_char_is_punctuation, PL_CUT_ISOLATED);
  }
  if (pl_tok_is(o, "Punctuation")) {
    PL_TRY(read_behaviour(r, o, "Isolated", &cut));
    return read_class(r, o, pl_char_is_punctuation, cut);
  }
  if (pl_tok_is(o, "Digits")) {
    PL_TRY(pl_tok_flag(r, o, "individual_digits", false, &single));
    return read_class(r, o, pl_char_is_number, single ? PL_CUT_ISOLATED : PL_CUT_CONTIGUOUS);
  }
  if (pl_tok_is(o, "Whitespace")) {
    PL_TRY(need_tables(r, o));
    PL_TRY(next_step(r, PL_STEP_CUT, &s));
    s->words = true;
    return PL_OK;
  }
  if (pl_tok_is(o, "FixedLength")) {
    PL_TRY(pl_tok_integer(r, o, "length", 5, 1, INT32_MAX, &count));
    PL_TRY(next_step(r, PL_STEP_FIXED, &s));
    s->count = (size_t)count;
    return PL_OK;
  }
  if (pl_tok_is(o, "UnicodeScripts")) {
    PL_TRY(next_step(r, PL_STEP_SCRIPTS, &s));
    return pl_scripts_ready(r->name, &s->pattern);
  }
  return pl_tok_unsupported(r, "the pre_tokenizer", pl_tok_type(o));
}

PlStatus pl_tok_read_pre_tokenizer(PlTokReader *r, const json_t *o, int depth) {
  if (pl_tok_absent(o)) return PL_OK;
  if (pl_tok_is(o, "Sequence")) {
    const json_t *list = json_object_get(o, "pretokenizers");
    PL_TRY(deeper(r, depth));
    if (!json_is_array(list)) return pl_tok_bad(r, "pretokenizers must be an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
      if (pl_tok_absent(json_array_get(list, i))) return pl_tok_bad(r, "a pre_tokenizer is null");
      PL_TRY(pl_tok_read_pre_tokenizer(r, json_array_get(list, i), depth + 1));
    }
    return PL_OK;
  }
  if (pl_tok_is(o, "ByteLevel")) return read_byte_level(r, o);
  if (pl_tok_is(o, "Metaspace")) return read_metaspace(r, o);
  if (pl_tok_is(o, "Split")) return read_split(r, o);
  if (pl_tok_is(o, "CharDelimiterSplit")) return read_delimiter(r, o);
  if (pl_tok_is(o, "WhitespaceSplit")) return read_class(r, o, pl_char_is_space, PL_CUT_REMOVED);
  return read_small_step(r, o);
}

/* ---- decoder -------------------------------------------------------------------------------------------------------- */

static PlStatus fill_decode(PlTokReader *r, const json_t *o, PlDecodeStep *s) {
  json_int_t left, right;
  bool prefix;
  switch (s->kind) {
  case PL_DECODE_STRIP:
    PL_TRY(character(r, o, "content", &s->text));
    PL_TRY(pl_tok_integer(r, o, "start", 0, 0, INT32_MAX, &left));
    PL_TRY(pl_tok_integer(r, o, "stop", 0, 0, INT32_MAX, &right));
    s->left = left;
    s->right = right;
    return PL_OK;
  case PL_DECODE_REPLACE: PL_TRY(pl_tok_copy(r, o, "content", false, &s->with)); return read_pattern(r, o, &s->pattern);
  case PL_DECODE_METASPACE: {
    const char *scheme;
    PL_TRY(pl_tok_word(r, o, "prepend_scheme", &scheme));
    PL_TRY(pl_tok_flag(r, o, "add_prefix_space", true, &prefix));
    s->flag = prefix && !(scheme && strcmp(scheme, "never") == 0);
    return character(r, o, "replacement", &s->text);
  }
  case PL_DECODE_WORDPIECE: PL_TRY(pl_tok_flag(r, o, "cleanup", true, &s->flag)); return pl_tok_copy(r, o, "prefix", false, &s->text);
  case PL_DECODE_BPE: return pl_tok_copy(r, o, "suffix", false, &s->text);
  case PL_DECODE_CTC:
    PL_TRY(pl_tok_flag(r, o, "cleanup", true, &s->flag));
    PL_TRY(pl_tok_copy(r, o, "word_delimiter_token", false, &s->with));
    return pl_tok_copy(r, o, "pad_token", false, &s->text);
  default: return PL_OK;
  }
}

PlStatus pl_tok_read_decoder(PlTokReader *r, const json_t *o, int depth) {
  static const char *const types[] = {"ByteLevel", "ByteFallback", "Fuse",       "Strip", "Replace",
                                      "Metaspace", "WordPiece",    "BPEDecoder", "CTC"};
  if (pl_tok_absent(o)) return PL_OK;
  if (pl_tok_is(o, "Sequence")) {
    const json_t *list = json_object_get(o, "decoders");
    PL_TRY(deeper(r, depth));
    if (!json_is_array(list)) return pl_tok_bad(r, "decoders must be an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
      if (pl_tok_absent(json_array_get(list, i))) return pl_tok_bad(r, "a decoder is null");
      PL_TRY(pl_tok_read_decoder(r, json_array_get(list, i), depth + 1));
    }
    return PL_OK;
  }
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    if (!pl_tok_is(o, types[i])) continue;
    if (r->t->ndecode == PL_MAX_STEPS) return pl_tok_bad(r, "a decoder of more than 24 steps");
    PlDecodeStep *s = &r->t->decode[r->t->ndecode++];
    *s = (PlDecodeStep){.kind = (PlDecodeKind)i};
    return fill_decode(r, o, s);
  }
  return pl_tok_unsupported(r, "the decoder", pl_tok_type(o));
}

#endif
