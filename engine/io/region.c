/* SPDX-License-Identifier: MIT
 * See region.h. */
#include "engine/io/region.h"

#include <string.h>

#include "kernels/kernel.h"

enum { PAGE = 4096, WINDOW = 1 << 16 };

PlStatus pl_region_check(const PlRegion *r, const char *who) {
  for (int d = 0; d < r->ndim; d++)
    if (r->start[d] < 0 || r->count[d] < 0 || r->count[d] > r->shape[d] || r->start[d] > r->shape[d] - r->count[d])
      return pl_file_code(pl_fail(PL_ERR_ARG, "%s: dimension %d has %lld elements; %lld to %lld were asked for", who, d + 1,
                                  (long long)r->shape[d], (long long)r->start[d] + 1, (long long)(r->start[d] + r->count[d])));
  return PL_OK;
}

/* Dimensions from `inner` on are whole: each index of the others is one run of `run` elements. */
typedef struct Runs {
  int inner;
  int64_t run, gap; /* gap: elements between the ends of neighbouring runs, the smallest there is */
  int64_t stride[PL_MAX_DIM];
} Runs;

static Runs runs_of(const PlRegion *r) {
  Runs w = {.inner = r->ndim, .run = 1};
  int64_t stride = 1;
  for (int d = r->ndim - 1; d >= 0; d--) {
    w.stride[d] = stride;
    stride *= r->shape[d];
  }
  while (w.inner > 0) {
    const int d = --w.inner;
    w.run *= r->count[d];
    if (r->count[d] != r->shape[d]) break;
  }
  w.gap = w.inner > 0 ? w.stride[w.inner - 1] - w.run : 0;
  return w;
}

/* Many short runs that lie close together are read through a window. */
static PlStatus read_runs(const PlRegion *r, const Runs *w, int fd, const char *path, int64_t at, size_t size, char *out, char *window) {
  int64_t index[PL_MAX_DIM] = {0}, end = 0, many = 1;
  const int64_t bytes = w->run * (int64_t)size;
  for (int d = 0; d < r->ndim; d++) end += (r->start[d] + r->count[d] - 1) * w->stride[d];
  end = at + (end + 1) * (int64_t)size; /* of the last run: the window reads no further */
  for (int d = 0; d < w->inner; d++) many *= r->count[d];
  int64_t from = 0, have = 0;
  for (int64_t i = 0; i < many; i++, out += bytes) {
    int64_t place = 0;
    for (int d = 0; d < r->ndim; d++) place += (r->start[d] + (d < w->inner ? index[d] : 0)) * w->stride[d];
    place = at + place * (int64_t)size;
    if (!window) {
      PL_TRY(pl_file_read_at(fd, path, out, (size_t)bytes, place));
    } else {
      if (place < from || place + bytes > from + have) {
        from = place;
        have = end - place < WINDOW ? end - place : WINDOW;
        PL_TRY(pl_file_read_at(fd, path, window, (size_t)have, from));
      }
      memcpy(out, window + (place - from), (size_t)bytes);
    }
    for (int d = w->inner - 1; d >= 0; d--) {
      if (++index[d] < r->count[d]) break;
      index[d] = 0;
    }
  }
  return PL_OK;
}

PlStatus pl_region_read(const PlRegion *r, int fd, const char *path, int64_t at, size_t size, void *out) {
  for (int d = 0; d < r->ndim; d++)
    if (r->count[d] == 0) return PL_OK;
  const Runs w = runs_of(r);
  const bool close = w.inner > 0 && w.gap * (int64_t)size <= PAGE && w.run * (int64_t)size <= WINDOW / 2;
  void *window = NULL;
  if (close) PL_TRY(pl_file_code(plk_scratch(WINDOW, &window)));
  PlStatus st = read_runs(r, &w, fd, path, at, size, out, window);
  plk_scratch_free(window);
  return st;
}
