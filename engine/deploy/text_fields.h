/* SPDX-License-Identifier: MIT
 * Fields of the lines of saved graphs: pieces of text with a length, read whole or not at all. */
#ifndef PL_ENGINE_DEPLOY_TEXT_FIELDS_H
#define PL_ENGINE_DEPLOY_TEXT_FIELDS_H

#include "engine/graph/ir/graph.h"
#include "engine/io/io.h"

static inline bool pl_field_is(PlText t, const char *word) {
  size_t i = 0;
  while (i < t.n && word[i] && t.s[i] == word[i]) i++;
  return i == t.n && !word[i];
}
/* The text before the next `sep`, which is taken away with it; all that is left if there is none. false: nothing is left. */
bool pl_field_next(PlText *rest, char sep, PlText *out);
/* A whole number that is written like one (no blanks, no leading zeros or plus), from lo to hi. */
bool pl_field_integer(PlText t, int64_t lo, int64_t hi, int64_t *out);
/* A number of Lua's: an integer as above, or a float (also nan, inf, -inf). */
bool pl_field_number(PlText t, bool *is_int, int64_t *i, double *f);
bool pl_field_dtype(PlText t, PlDtype *out);
/* "3,4", or as `sep` says; at most PL_MAX_DIM sizes; "" is none. */
bool pl_field_shape(PlText t, char sep, int *ndim, int64_t *shape);
/* A copy in the graph's pool, %XX decoded, ended by a zero byte; NULL: out of memory. *bad: it holds a zero
 * byte, or a blank as it is. */
const char *pl_field_name(PlGraph *f, PlText t, bool *bad);
/* Sets one attribute from what stands behind its "name=". false: it is none that the attribute takes, and *why says so. */
bool pl_field_attr(const PlOp *op, PlAttrs *a, int k, PlText value, const char **why);

#endif
