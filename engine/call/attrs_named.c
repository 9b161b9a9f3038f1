/* SPDX-License-Identifier: MIT
 * Attributes by their names, for programs that use the C API: checked against the op's table, so that neither a position nor
 * a kind can be wrong without a word. */
#include <stdio.h>
#include <string.h>

#include "engine/call/call.h"

const char *pl_op_attr(const PlOp *op, int k) { return k >= 0 && k < op->nattr ? op->attrs[k].name : NULL; }

/* Writes the names of the op's attributes, as "dims, keepdim". */
static const char *names(const PlOp *op, char *buf, size_t size) {
  size_t n = 0;
  snprintf(buf, size, "%s", op->nattr ? "" : "it has none");
  for (int k = 0; k < op->nattr && n < size; k++) n += (size_t)snprintf(buf + n, size - n, "%s%s", k ? ", " : "", op->attrs[k].name);
  return buf;
}

static PlStatus find(const PlOp *op, const char *name, int *k) {
  char buf[512];
  for (*k = 0; *k < op->nattr; (*k)++)
    if (strcmp(op->attrs[*k].name, name) == 0) return PL_OK;
  PL_FAIL(PL_ERR_ARG, "%s has no attribute '%s' (%s)", op->name, name, names(op, buf, sizeof buf));
}

static const char *kind(PlAttrType t) {
  switch (t) {
  case PL_A_INT:
  case PL_A_DIM:
  case PL_A_NEWDIM:
  case PL_A_INDEX:
  case PL_A_BASE: return "an integer";
  case PL_A_FLOAT: return "a float";
  case PL_A_BOOL: return "0 or 1";
  case PL_A_SCALAR: return "a number";
  case PL_A_DTYPE: return "a PlDtype";
  case PL_A_ENUM: return "a word";
  case PL_A_FLOATS: return "a list of floats";
  default: return "a list of integers";
  }
}

static PlStatus wrong(const PlOp *op, int k, const char *got) {
  const PlAttrDef *d = &op->attrs[k];
  PL_FAIL(PL_ERR_ARG, "%s: attribute %s is %s%s%s%s, got %s", op->name, d->name, kind(d->type), d->choices ? " of " : "",
          d->choices ? d->choices : "", d->optional ? " or none" : "", got);
}

PlStatus pl_attrs_set_int(const PlOp *op, PlAttrs *a, const char *name, int64_t v) {
  int k;
  PL_TRY(find(op, name, &k));
  switch (op->attrs[k].type) {
  case PL_A_INTS:
  case PL_A_SHAPE:
  case PL_A_DIMS: return pl_attrs_list(a, k, 1, &v);
  case PL_A_FLOAT: pl_attrs_float(a, k, (double)v); return PL_OK;
  case PL_A_BOOL:
    if (v != 0 && v != 1) return wrong(op, k, "another integer");
    break;
  case PL_A_DTYPE:
    if (v < 0 || v >= PL_NDTYPE) return wrong(op, k, "another integer");
    break;
  case PL_A_FLOATS: return wrong(op, k, "an integer");
  case PL_A_ENUM: return wrong(op, k, "an integer");
  default: break;
  }
  pl_attrs_int(a, k, v);
  return PL_OK;
}

PlStatus pl_attrs_set_float(const PlOp *op, PlAttrs *a, const char *name, double v) {
  int k;
  PL_TRY(find(op, name, &k));
  if (op->attrs[k].type != PL_A_FLOAT && op->attrs[k].type != PL_A_SCALAR) return wrong(op, k, "a float");
  pl_attrs_float(a, k, v);
  return PL_OK;
}

PlStatus pl_attrs_set_list(const PlOp *op, PlAttrs *a, const char *name, int n, const int64_t *v) {
  int k;
  PL_TRY(find(op, name, &k));
  const PlAttrType t = op->attrs[k].type;
  if (t != PL_A_INTS && t != PL_A_SHAPE && t != PL_A_DIMS) return wrong(op, k, "a list of integers");
  return pl_attrs_list(a, k, n, v);
}

PlStatus pl_attrs_set_floats(const PlOp *op, PlAttrs *a, const char *name, int n, const double *v) {
  int64_t bits[PL_ATTR_POOL];
  int k;
  PL_TRY(find(op, name, &k));
  if (op->attrs[k].type != PL_A_FLOATS) return wrong(op, k, "a list of floats");
  if (n < 0 || n > PL_ATTR_POOL) PL_FAIL(PL_ERR_ARG, "%s: a list of %d numbers is too long for %s", op->name, n, name);
  if (n) memcpy(bits, v, (size_t)n * sizeof *v);
  return pl_attrs_list(a, k, n, bits);
}

PlStatus pl_attrs_set_word(const PlOp *op, PlAttrs *a, const char *name, const char *word) {
  int k;
  PL_TRY(find(op, name, &k));
  const size_t n = strlen(word);
  const char *at = op->attrs[k].type == PL_A_ENUM ? op->attrs[k].choices : NULL;
  for (int64_t i = 0; at; i++) {
    const char *end = strchr(at, '|');
    if ((end ? (size_t)(end - at) : strlen(at)) == n && strncmp(at, word, n) == 0) {
      pl_attrs_int(a, k, i);
      return PL_OK;
    }
    at = end ? end + 1 : NULL;
  }
  char got[64];
  snprintf(got, sizeof got, "'%s'", word);
  return wrong(op, k, got);
}

PlStatus pl_attrs_set_none(const PlOp *op, PlAttrs *a, const char *name) {
  int k;
  PL_TRY(find(op, name, &k));
  if (!op->attrs[k].optional) return wrong(op, k, "none");
  pl_attrs_none(a, k);
  return PL_OK;
}
