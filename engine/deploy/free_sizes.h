/* SPDX-License-Identifier: MIT
 * Sizes that a saved graph leaves free (lua/perilune/graph/sizes.lua): "size NAME EXAMPLE LEAST MOST" declares one. Where a text has an
 * integer, an expression may stand: 2*$1*@7.2+1 is twice the first free size times the second size of value 7, and one. Types of
 * results may also leave a size to the op's rule: "?". */
#ifndef PL_ENGINE_DEPLOY_FREE_SIZES_H
#define PL_ENGINE_DEPLOY_FREE_SIZES_H

#include "engine/deploy/text_fields.h"

enum { PL_MOST_FREE_SIZES = 16, PL_MOST_SIZE_FACTORS = 4 };

typedef struct PlFreeSize {
  const char *name;
  int64_t example, least, most; /* the example's graph is what was traced */
} PlFreeSize;

/* What expressions speak of. size_of: size `dim`, from 1, of the value of that number; false: there is none. */
typedef struct PlSizesNow {
  int32_t n;
  int64_t value[PL_MOST_FREE_SIZES];
  bool (*size_of)(const void *ud, PlText number, int64_t dim, int64_t *out);
  const void *ud;
} PlSizesNow;

/* "NAME EXAMPLE LEAST MOST", the name still with its %XX. */
bool pl_free_size_read(PlText line, PlText *name, PlFreeSize *out);
/* Is there an expression in it? */
bool pl_size_is_free(PlText t);
/* An expression's value; false: it is none, or speaks of what is not there, or some step of it is beyond 2^53. */
bool pl_size_value(const PlSizesNow *now, PlText t, int64_t *out);
/* A copy of "{a,b}" or "a,b", or with another separator, in which expressions are their values; to has `room` bytes. false: as above, or no
 * room. */
bool pl_sizes_put(const PlSizesNow *now, PlText list, char sep, char *to, size_t room, PlText *out);
/* For people, in f's pool: "2*batch+1"; "?" for what is a matter of rules. NULL: out of memory. */
const char *pl_size_words(PlGraph *f, const PlFreeSize *sizes, int32_t n, PlText t);

#endif
