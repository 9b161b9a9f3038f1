/* SPDX-License-Identifier: MIT
 * See saved_graph_lines.h: values of a saved graph by their numbers, in a table by hash, and the fields that name them. */
#include <stdlib.h>

#include "engine/deploy/saved_graph_lines.h"

PlStatus pl_reader_no_memory(void) { PL_FAIL(PL_ERR_OOM, "out of memory to read a graph"); }

PlStatus pl_reader_grow(void *array, int64_t n, int64_t *capacity, size_t item) {
  if (n < *capacity) return PL_OK;
  const int64_t want = 2 * n + 16;
  void **a = array, *p = realloc(*a, (size_t)want * item);
  if (!p) return pl_reader_no_memory();
  *a = p;
  *capacity = want;
  return PL_OK;
}

static PlReaderValue *place_of(const PlGraphReader *r, int64_t number) {
  uint64_t h = (uint64_t)number * UINT64_C(0x9E3779B97F4A7C15);
  for (int64_t i = (int64_t)(h >> 20) & (r->capacity - 1);; i = (i + 1) & (r->capacity - 1))
    if (r->values[i].number == 0 || r->values[i].number == number + 1) return &r->values[i];
}

static PlStatus grow_values(PlGraphReader *r) {
  if (2 * (r->nvalues + 1) <= r->capacity) return PL_OK;
  PlReaderValue *old = r->values;
  const int64_t n = r->capacity;
  r->values = calloc((size_t)(n ? 2 * n : 64), sizeof *r->values);
  if (!r->values) {
    r->values = old;
    return pl_reader_no_memory();
  }
  r->capacity = n ? 2 * n : 64;
  for (int64_t i = 0; i < n; i++)
    if (old[i].number) *place_of(r, old[i].number - 1) = old[i];
  free(old);
  return PL_OK;
}

PlStatus pl_reader_sized_value(PlGraphReader *r, PlText number, PlTensor *t, PlText dims, char sep) {
  int64_t k;
  PlStatus s = PL_OK;
  if (!pl_field_integer(number, 0, 1 << 28, &k))
    s = pl_file_bad(r->path, AT_LINE("value number %.*s"), (int)(number.n < 40 ? number.n : 40), number.s);
  else if (r->nvalues == PL_SAVED_MOST_VALUES) s = pl_file_bad(r->path, AT_LINE("more than %d values"), PL_SAVED_MOST_VALUES);
  else s = grow_values(r);
  if (s == PL_OK) {
    PlReaderValue *v = place_of(r, k);
    if (v->number) s = pl_file_bad(r->path, AT_LINE("value %lld is made twice"), (long long)k);
    else {
      *v = (PlReaderValue){k + 1, t, dims, sep};
      r->nvalues++;
      return PL_OK;
    }
  }
  pl_tensor_release(t);
  return s;
}

PlStatus pl_reader_value(PlGraphReader *r, PlText number, PlTensor *t) {
  return pl_reader_sized_value(r, number, t, (PlText){NULL, 0}, 'x');
}

const PlReaderValue *pl_reader_known(const PlGraphReader *r, PlText number) {
  int64_t k;
  const PlReaderValue *v = pl_field_integer(number, 0, 1 << 28, &k) && r->capacity ? place_of(r, k) : NULL;
  return v && v->number && v->t ? v : NULL;
}

bool pl_reader_size_of(const void *ud, PlText number, int64_t dim, int64_t *out) {
  const PlReaderValue *v = pl_reader_known(ud, number);
  if (!v || dim > v->t->a.ndim) return false;
  *out = v->t->a.shape[dim - 1];
  return true;
}

PlStatus pl_reader_find(const PlGraphReader *r, PlText number, PlTensor **out) {
  const PlReaderValue *v = pl_reader_known(r, number);
  if (!v) BAD(AT_LINE("value %.*s is used before it is made"), (int)(number.n < 40 ? number.n : 40), number.s);
  *out = v->t;
  return PL_OK;
}

bool pl_reader_fields(PlText line, int n, bool rest, PlText *out) {
  for (int i = 0; i < n; i++) {
    if (i == n - 1 && rest) {
      out[i] = line;
      return true;
    }
    if (!pl_field_next(&line, ' ', &out[i]) || out[i].n == 0) return false;
  }
  return line.s == NULL;
}

PlStatus pl_reader_settle(const PlGraphReader *r, PlText *field, char sep, char *to, size_t room) {
  if (!pl_size_is_free(*field)) return PL_OK;
  if (!pl_sizes_put(&r->now, *field, sep, to, room, field)) BAD(AT_LINE("the size %.*s"), (int)(field->n < 60 ? field->n : 60), field->s);
  return PL_OK;
}
