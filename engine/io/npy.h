/* SPDX-License-Identifier: MIT
 * One array in NumPy's npy format, read from a stream: a file of its own or a member of an npz archive. */
#ifndef PL_ENGINE_IO_NPY_H
#define PL_ENGINE_IO_NPY_H

#include "engine/io/stream.h"

PlStatus pl_npy_read(PlStream *s, PlTensor **out, int64_t max_bytes);

#endif
