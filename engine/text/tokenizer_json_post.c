/* SPDX-License-Identifier: MIT
 * What a tokenizer.json file puts around a text, and what it says of truncation and padding. */
#include "engine/text/tokenizer_json.h"

#include <string.h>

#ifdef PL_HAVE_JANSSON

static PlStatus next_part(PlTokReader *r, PlTemplate *p, PlTemplatePart part) {
  if (p->n == PL_MAX_TEMPLATE) return pl_tok_bad(r, "a template of more than 32 parts");
  p->part[p->n++] = part;
  return PL_OK;
}

static PlStatus put_special(PlTokReader *r, PlTemplate *p, const json_t *ids, int32_t type) {
  PlTokenizer *t = r->t;
  PlTemplatePart part = {.which = -1, .type = type, .at = t->special_ids.n, .n = json_array_size(ids)};
  if (!json_is_array(ids) || part.n == 0 || part.n > 4096) return pl_tok_bad(r, "a special token of the post_processor");
  for (size_t i = 0; i < part.n; i++) {
    const json_t *v = json_array_get(ids, i);
    json_int_t k = json_is_integer(v) ? json_integer_value(v) : -1;
    size_t n;
    bool special;
    if (k < 0 || k >= t->size || !pl_tokenizer_text(t, k, &n, &special))
      return pl_tok_bad(r, "a special token of the post_processor is not in the vocabulary");
    PL_TRY(pl_ids_push(&t->special_ids, (int32_t)k));
  }
  p->added += part.n;
  return next_part(r, p, part);
}

static PlStatus put_text(PlTokReader *r, PlTemplate *p, int which, int32_t type) {
  return next_part(r, p, (PlTemplatePart){.which = which, .type = type});
}

static PlStatus read_template(PlTokReader *r, const json_t *list, const json_t *tokens, bool pair, PlTemplate *p) {
  bool has[2] = {false, false};
  if (!json_is_array(list)) return pl_tok_bad(r, "a template of the post_processor");
  p->n = 0;
  for (size_t i = 0; i < json_array_size(list); i++) {
    const json_t *part = json_array_get(list, i), *text = json_object_get(part, "Sequence"),
                 *special = json_object_get(part, "SpecialToken");
    const char *id = json_string_value(json_object_get(text ? text : special, "id"));
    json_int_t type;
    PL_TRY(pl_tok_integer(r, text ? text : special, "type_id", 0, 0, INT32_MAX, &type));
    if (!id) return pl_tok_bad(r, "a template of the post_processor");
    if (!text) {
      const json_t *token = json_object_get(tokens, id);
      if (!token) return pl_tok_bad(r, "a template with a special token that special_tokens has not");
      PL_TRY(put_special(r, p, json_object_get(token, "ids"), (int32_t)type));
      continue;
    }
    int which = strcmp(id, "B") == 0;
    if (which == 0 && strcmp(id, "A") != 0) return pl_tok_bad(r, "a template with another text than A and B");
    if (which == 1 && !pair) return pl_tok_bad(r, "a template for one text with B");
    has[which] = true;
    PL_TRY(put_text(r, p, which, (int32_t)type));
  }
  return pair && !(has[0] && has[1]) ? pl_tok_bad(r, "a template for two texts without one of them") : PL_OK;
}

/* ["[SEP]", 102] */
static PlStatus put_named(PlTokReader *r, PlTemplate *p, const json_t *o, const char *key, int32_t type) {
  const json_t *pair = json_object_get(o, key);
  json_t *ids = json_array();
  if (!ids) PL_FAIL(PL_ERR_OOM, "%s: out of memory", r->name);
  PlStatus st = json_array_append(ids, json_array_get(pair, 1)) == 0 ? PL_OK : pl_tok_bad(r, "a special token of the post_processor");
  if (st == PL_OK) st = put_special(r, p, ids, type);
  json_decref(ids);
  return st;
}

/* BERT: [CLS] A [SEP] B [SEP], B and what is behind it of type 1; RoBERTa: <s> A </s> </s> B </s>, all of type 0. */
static PlStatus read_bert(PlTokReader *r, const json_t *o, bool roberta) {
  PlTemplate *single = &r->t->single, *pair = &r->t->pair;
  const int32_t second = roberta ? 0 : 1;
  single->n = pair->n = 0;
  for (int i = 0; i < 2; i++) {
    PlTemplate *p = i ? pair : single;
    PL_TRY(put_named(r, p, o, "cls", 0));
    PL_TRY(put_text(r, p, 0, 0));
    PL_TRY(put_named(r, p, o, "sep", 0));
  }
  if (roberta) PL_TRY(put_named(r, pair, o, "sep", 0));
  PL_TRY(put_text(r, pair, 1, second));
  return put_named(r, pair, o, "sep", second);
}

static PlStatus add_trim(PlTokReader *r, const json_t *o) {
  bool trim, prefix;
  PL_TRY(pl_tok_flag(r, o, "trim_offsets", true, &trim));
  PL_TRY(pl_tok_flag(r, o, "add_prefix_space", true, &prefix));
  if (!trim) return PL_OK;
  if (r->t->ntrim == PL_MAX_TRIMS) return pl_tok_bad(r, "too many post_processors");
  r->t->trim[r->t->ntrim++] = (PlTrim){.add_prefix_space = prefix};
  return PL_OK;
}

static PlStatus read_one(PlTokReader *r, const json_t *o, bool *shaped, int depth) {
  if (pl_tok_is(o, "Sequence")) {
    const json_t *list = json_object_get(o, "processors");
    if (!json_is_array(list) || depth > PL_TOK_MAX_DEPTH) return pl_tok_bad(r, "processors must be an array");
    for (size_t i = 0; i < json_array_size(list); i++) PL_TRY(read_one(r, json_array_get(list, i), shaped, depth + 1));
    return PL_OK;
  }
  if (pl_tok_is(o, "ByteLevel")) return add_trim(r, o);
  bool template = pl_tok_is(o, "TemplateProcessing"), bert = pl_tok_is(o, "BertProcessing"), roberta = pl_tok_is(o, "RobertaProcessing");
  if (!template && !bert && !roberta) return pl_tok_unsupported(r, "the post_processor", pl_tok_type(o));
  if (*shaped) return pl_tok_unsupported(r, "behind another one the post_processor", pl_tok_type(o));
  *shaped = true;
  if (roberta) PL_TRY(add_trim(r, o));
  if (!template) return read_bert(r, o, roberta);
  const json_t *tokens = json_object_get(o, "special_tokens");
  PL_TRY(read_template(r, json_object_get(o, "single"), tokens, false, &r->t->single));
  return read_template(r, json_object_get(o, "pair"), tokens, true, &r->t->pair);
}

PlStatus pl_tok_read_post(PlTokReader *r, const json_t *o) {
  bool shaped = false;
  PL_TRY(put_text(r, &r->t->single, 0, 0));
  PL_TRY(put_text(r, &r->t->pair, 0, 0));
  PL_TRY(put_text(r, &r->t->pair, 1, 1));
  return pl_tok_absent(o) ? PL_OK : read_one(r, o, &shaped, 0);
}

/* ---- truncation and padding ------------------------------------------------------------------------------------------ */

static PlStatus read_side(const PlTokReader *r, const json_t *o, bool *left) {
  const char *s;
  PL_TRY(pl_tok_word(r, o, "direction", &s));
  *left = s && strcmp(s, "Left") == 0;
  return !s || *left || strcmp(s, "Right") == 0 ? PL_OK : pl_tok_unsupported(r, "the direction", s);
}

static PlStatus read_truncation(PlTokReader *r, const json_t *o) {
  static const char *const names[] = {"LongestFirst", "OnlyFirst", "OnlySecond"};
  PlEncodeOptions *to = &r->t->defaults.options;
  json_int_t most;
  const char *s;
  if (!json_is_object(o)) return pl_tok_bad(r, "truncation must be an object");
  PL_TRY(read_side(r, o, &to->left));
  PL_TRY(pl_tok_integer(r, o, "max_length", 512, 0, INT32_MAX, &most));
  PL_TRY(pl_tok_word(r, o, "strategy", &s));
  to->truncate = true;
  to->max_length = most;
  for (int i = 0; s && i < 3; i++)
    if (strcmp(s, names[i]) == 0) return to->strategy = (PlTruncation)i, PL_OK;
  return s ? pl_tok_unsupported(r, "the truncation strategy", s) : PL_OK;
}

static PlStatus read_padding(PlTokReader *r, const json_t *o) {
  PlTokenizerDefaults *to = &r->t->defaults;
  const json_t *strategy = json_object_get(o, "strategy");
  json_int_t n;
  if (!json_is_object(o)) return pl_tok_bad(r, "padding must be an object");
  const char *s = json_string_value(strategy);
  if (!pl_tok_absent(strategy) && !(s && strcmp(s, "BatchLongest") == 0) && !json_object_get(strategy, "Fixed"))
    return pl_tok_unsupported(r, "the padding strategy", s);
  to->pads = true;
  PL_TRY(read_side(r, o, &to->pads_left));
  PL_TRY(pl_tok_integer(r, o, "pad_to_multiple_of", 0, 0, INT32_MAX, &n));
  to->pad_multiple = n;
  PL_TRY(pl_tok_integer(r, o, "pad_id", 0, 0, INT32_MAX, &n));
  to->pad_id = n;
  PL_TRY(pl_tok_integer(r, o, "pad_type_id", 0, 0, INT32_MAX, &n));
  to->pad_type = n;
  PL_TRY(pl_tok_integer(r, strategy, "Fixed", -1, 0, INT32_MAX, &n));
  to->pad_to = n;
  return PL_OK;
}

PlStatus pl_tok_read_defaults(PlTokReader *r, const json_t *truncation, const json_t *padding) {
  if (!pl_tok_absent(truncation)) PL_TRY(read_truncation(r, truncation));
  return pl_tok_absent(padding) ? PL_OK : read_padding(r, padding);
}

#endif
