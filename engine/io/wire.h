/* SPDX-License-Identifier: MIT
 * What an element is in a file, and which dtype of ours has all of its values: one table for safetensors, PyTorch's files, GGUF
 * and npy. What perilune does not compute with is read into the next wider dtype that holds every value exactly: u16 into
 * i32, u32 into i64, u64 into i64 (an error where one does not fit), floats of 8 bits into f16, powers of two of 8 bits into
 * f32. */
#ifndef PL_ENGINE_IO_WIRE_H
#define PL_ENGINE_IO_WIRE_H

#include "engine/io/file.h"

typedef struct PlWire {
  const char *name; /* as safetensors has it */
  uint8_t dtype;    /* what it is read into; PL_NDTYPE: nothing of ours */
  uint8_t bits;     /* of an element in the file */
  bool widen;       /* not the same bits here */
} PlWire;

/* NULL for a name that is not known. */
const PlWire *pl_wire_find(const char *name, size_t n);
const PlWire *pl_wire_of(PlDtype dtype);
/* n elements at byte `at` of fd become elements first … of t, which is contiguous; fewer bytes are FORMAT, as are bools that
 * are neither 0 nor 1. swap: they are of the other byte order. */
PlStatus pl_wire_read(const PlWire *w, int fd, const char *path, int64_t at, bool swap, PlTensor *t, int64_t first, int64_t n);
/* n elements in the file's form at the end of data, which has room for n in ours, become such. */
PlStatus pl_wire_convert(const PlWire *w, const char *path, bool swap, void *data, int64_t n);

#endif
