/* SPDX-License-Identifier: MIT
 * The normalizer and the decoder of a tokenizer.json file. */
#include "engine/text/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

#ifdef PL_HAVE_JANSSON

static PlStatus copy_text(const PlTokReader *r, const json_t *v, char **to, size_t *n) {
  const char *s = json_string_value(v);
  if (!s || json_string_length(v) > 4096 || strlen(s) != json_string_length(v)) return pl_tok_bad(r, "a text");
  *n = strlen(s);
  *to = strdup(s);
  if (!*to) PL_FAIL(PL_ERR_OOM, "%s: out of memory", r->name);
  return PL_OK;
}

/* ---- normalizer ----------------------------------------------------------------------------------------------------- */

static PlStatus read_kind(const PlTokReader *r, const json_t *o, PlNormStep *step) {
  static const struct {
    const char *type;
    PlNormKind kind;
  } kinds[] = {{"NFC", PL_NORM_NFC},     {"NFD", PL_NORM_NFD},         {"NFKC", PL_NORM_NFKC},
               {"NFKD", PL_NORM_NFKD},   {"Lowercase", PL_NORM_LOWER}, {"StripAccents", PL_NORM_NO_ACCENTS},
               {"Strip", PL_NORM_STRIP}, {"Prepend", PL_NORM_PREPEND}, {"Replace", PL_NORM_REPLACE}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!pl_tok_is(o, kinds[i].type)) continue;
    step->kind = kinds[i].kind;
    if (pl_norm_possible(step->kind)) return PL_OK;
    PL_FAIL(PL_ERR_UNSUPPORTED,
            "%s: this build has no utf8proc, so no normalizer '%s' (install libutf8proc-dev and build "
            "again)",
            r->name, kinds[i].type);
  }
  return pl_tok_unsupported(r, "the normalizer", pl_tok_type(o));
}

static PlStatus read_one(PlTokReader *r, const json_t *o) {
  if (r->t->nnorm == PL_MAX_STEPS) return pl_tok_unsupported(r, "a normalizer of more steps than", "8");
  PlNormStep *step = &r->t->norm[r->t->nnorm];
  *step = (PlNormStep){.left = pl_tok_flag(o, "strip_left", true), .right = pl_tok_flag(o, "strip_right", true)};
  PL_TRY(read_kind(r, o, step));
  r->t->nnorm++; /* what it owns is freed with t */
  if (step->kind == PL_NORM_PREPEND) return copy_text(r, json_object_get(o, "prepend"), &step->text, &step->n);
  if (step->kind != PL_NORM_REPLACE) return PL_OK;
  PL_TRY(copy_text(r, json_object_get(o, "content"), &step->text, &step->n));
  return pl_tok_pattern(r, json_object_get(o, "pattern"), PL_CUT_ISOLATED, &step->pattern);
}

PlStatus pl_tok_read_normalizer(PlTokReader *r, const json_t *o) {
  if (pl_tok_absent(o)) return PL_OK;
  if (!pl_tok_is(o, "Sequence")) return read_one(r, o);
  const json_t *list = json_object_get(o, "normalizers");
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *part = json_array_get(list, i);
    if (pl_tok_is(part, "Sequence")) return pl_tok_unsupported(r, "a normalizer inside", "Sequence");
    PL_TRY(read_one(r, part));
  }
  return PL_OK;
}

/* ---- decoder -------------------------------------------------------------------------------------------------------- */

static PlStatus add_replace(PlTokReader *r, const json_t *from, const json_t *into) {
  PlBpe *b = &r->t->bpe;
  size_t n = 0;
  if (b->nreplace == (int)(sizeof b->from / sizeof *b->from)) return pl_tok_unsupported(r, "a decoder of too many", "Replace");
  char **f = &b->from[b->nreplace], **t = &b->into[b->nreplace];
  *f = *t = NULL;
  b->nreplace++;
  PL_TRY(copy_text(r, from, f, &n));
  if (n == 0) return pl_tok_bad(r, "an empty pattern of the decoder");
  return copy_text(r, into, t, &n);
}

static PlStatus read_strip(PlTokReader *r, const json_t *o) {
  PlTokenizer *t = r->t;
  const char *s = json_string_value(json_object_get(o, "content"));
  const json_int_t left = json_integer_value(json_object_get(o, "start")), right = json_integer_value(json_object_get(o, "stop"));
  if (!s || strlen(s) != 1 || t->strip || left < 0 || right < 0 || left > 1024 || right > 1024)
    return pl_tok_unsupported(r, "this decoder", "Strip");
  t->strip = *s;
  t->strip_left = (int)left;
  t->strip_right = (int)right;
  return PL_OK;
}

static PlStatus read_metaspace(PlTokReader *r, const json_t *o) {
  const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
  r->t->drop_first = scheme ? strcmp(scheme, "never") != 0 : pl_tok_flag(o, "add_prefix_space", true);
  json_t *blank = json_string(" ");
  PlStatus st = add_replace(r, json_object_get(o, "replacement"), blank);
  json_decref(blank);
  return st;
}

static PlStatus read_part(PlTokReader *r, const json_t *o, bool *fused) {
  if (pl_tok_is(o, "Fuse")) return *fused = true, PL_OK;
  if (pl_tok_is(o, "Strip")) return *fused ? read_strip(r, o) : pl_tok_unsupported(r, "a decoder Strip before", "Fuse");
  if (*fused) return pl_tok_unsupported(r, "behind Fuse the decoder", pl_tok_type(o));
  if (pl_tok_is(o, "Metaspace")) return read_metaspace(r, o);
  if (pl_tok_is(o, "ByteFallback")) return r->t->bpe.named_bytes = true, PL_OK;
  if (!pl_tok_is(o, "Replace")) return pl_tok_unsupported(r, "the decoder", pl_tok_type(o));
  const json_t *pattern = json_object_get(json_object_get(o, "pattern"), "String");
  if (!json_is_string(pattern)) return pl_tok_unsupported(r, "a decoder that replaces by", "Regex");
  return add_replace(r, pattern, json_object_get(o, "content"));
}

PlStatus pl_tok_read_decoder(PlTokReader *r, const json_t *o) {
  bool fused = false, absent = pl_tok_absent(o);
  if (!r->t->bpe.chars) return absent || pl_tok_is(o, "ByteLevel") ? PL_OK : pl_tok_unsupported(r, "the decoder", pl_tok_type(o));
  if (absent) return pl_tok_unsupported(r, "without ByteLevel the decoder", "null");
  if (!pl_tok_is(o, "Sequence")) return read_part(r, o, &fused);
  const json_t *list = json_object_get(o, "decoders");
  for (size_t i = 0; i < json_array_size(list); i++) PL_TRY(read_part(r, json_array_get(list, i), &fused));
  return PL_OK;
}

#endif
