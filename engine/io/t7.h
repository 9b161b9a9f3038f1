/* SPDX-License-Identifier: MIT
 * The elements of torch7's serialized files (File.lua and DiskFile of torch7): integers, numbers, strings and storages,
 * in the binary or the ascii encoding. What they mean together is decided in lua/perilune/io/t7.lua. */
#ifndef PL_ENGINE_IO_T7_H
#define PL_ENGINE_IO_T7_H

#include "engine/io/io.h"

typedef struct PlT7 PlT7;

/* Opens a file; its first bytes give the encoding. */
PlStatus pl_t7_open(PlT7 **out, const char *path);
void pl_t7_release(PlT7 *t);
/* 32-bit integer. Errors of all: IO, FORMAT (the file ends, or something else is there). */
PlStatus pl_t7_int(PlT7 *t, int64_t *v);
PlStatus pl_t7_long(PlT7 *t, int64_t *v); /* 64 bits */
PlStatus pl_t7_double(PlT7 *t, double *v);
/* A length and as many bytes; *s lasts until the next call. */
PlStatus pl_t7_string(PlT7 *t, const char **s, size_t *n);
/* n elements as a tensor [n]. Errors: also OOM. */
PlStatus pl_t7_storage(PlT7 *t, PlDtype dtype, int64_t n, PlTensor **out);
/* FORMAT with the file's name and place. */
PlStatus pl_t7_bad(const PlT7 *t, const char *why);
/* Whether nothing but blanks is left. */
PlStatus pl_t7_end(PlT7 *t, bool *over);

#endif
