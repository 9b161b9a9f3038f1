/* SPDX-License-Identifier: MIT
 * Elements that lie in a file as they lie in memory, little-endian and row-major: what ONNX files have of their weights. They are
 * read into the tensor itself, so that there are never two of them. */
#include <unistd.h>

#include "engine/io/file.h"

PlStatus pl_tensor_of_bytes(PlTensor **out, const char *path, int64_t from, PlDtype dtype, int ndim, const int64_t *shape) {
  int fd;
  int64_t size, bytes;
  PL_TRY(pl_file_shape(path, dtype, ndim, shape, &bytes));
  PL_TRY(pl_file_open(path, &fd, &size));
  PlTensor *t = NULL;
  PlStatus s = PL_OK;
  if (from < 0 || bytes > size || from > size - bytes) s = pl_file_bad(path, "the file ends early");
  if (s == PL_OK) s = pl_file_code(pl_tensor_empty(&t, dtype, ndim, shape));
  if (s == PL_OK && bytes > 0) s = pl_file_read_at(fd, path, pl_tensor_data(t), (size_t)bytes, from);
  close(fd);
  if (s != PL_OK) {
    pl_tensor_release(t);
    return s;
  }
  if (PL_BIG_ENDIAN) pl_file_swap(pl_tensor_data(t), pl_tensor_numel(t), pl_dtype_size(dtype));
  if (dtype == PL_BOOL) /* any other byte would break bool kernels */
    for (int64_t i = 0; i < bytes; i++) ((uint8_t *)pl_tensor_data(t))[i] = ((uint8_t *)pl_tensor_data(t))[i] != 0;
  *out = t;
  return PL_OK;
}
