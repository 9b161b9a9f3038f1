/* SPDX-License-Identifier: MIT
 * A part of a row-major array in a file: counts from a start along each dimension. */
#ifndef PL_ENGINE_IO_REGION_H
#define PL_ENGINE_IO_REGION_H

#include "engine/io/file.h"

typedef struct PlRegion {
  int ndim;
  int64_t shape[PL_MAX_DIM], start[PL_MAX_DIM], count[PL_MAX_DIM];
} PlRegion;

/* ARG unless the part lies inside the shape, by the name of who asks. */
PlStatus pl_region_check(const PlRegion *r, const char *who);
/* The bytes of a region, in order and without gaps; elements are of `size` bytes, the array begins at byte `at`. What lies between two runs
 * is read only where both are on one page or neighbours. */
PlStatus pl_region_read(const PlRegion *r, int fd, const char *path, int64_t at, size_t size, void *out);

#endif
