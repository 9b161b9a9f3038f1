/* SPDX-License-Identifier: MIT
 * One array in NumPy's npy format, read from a stream: a file of its own or a member of an npz archive. */
#ifndef PL_ENGINE_IO_NPY_H
#define PL_ENGINE_IO_NPY_H

#include "engine/io/stream.h"

enum { PL_NPY_HEADER = 768 }; /* bytes that a header of at most PL_MAX_DIM sizes may need */

/* The header that goes before t's elements in row-major order. ARG, in the name of `who`, for a dtype that NumPy does not have. */
PlStatus pl_npy_header(const PlTensor *t, const char *who, char *text, size_t room, size_t *n);
PlStatus pl_npy_read(PlStream *s, PlTensor **out, int64_t max_bytes);

#endif
