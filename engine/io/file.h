/* SPDX-License-Identifier: MIT
 * File descriptors with perilune's errors: the shared ground of the readers and writers
 * in this folder. */
#ifndef PL_ENGINE_IO_FILE_H
#define PL_ENGINE_IO_FILE_H

#include "engine/io/io.h"

/* Opens a regular file for reading and says its size. */
PlStatus pl_file_open(const char *path, int *fd, int64_t *size);
/* Reads exactly n bytes at `at`; fewer is FORMAT ("ends early"). Polls for Ctrl-C. */
PlStatus pl_file_read_at(int fd, const char *path, void *buf, size_t n, int64_t at);
/* A whole file into scratch memory (give it back with plk_scratch_free); FORMAT above max_bytes. One zero byte follows
 * the last. */
PlStatus pl_file_bytes(const char *path, int64_t max_bytes, char **data, size_t *size);
PlStatus pl_file_write(int fd, const char *path, const void *buf, size_t n);
/* Fails with PL_ERR_IO, the path, what was tried and errno's text. */
PlStatus pl_file_fail(const char *what, const char *path, int code);
/* Fails with PL_ERR_FORMAT and remembers EBADMSG. */
PlStatus pl_file_bad(const char *path, const char *why, ...) PL_PRINTF(2, 3);
/* The bytes of a tensor that a file declares; FORMAT if its sizes are impossible. */
PlStatus pl_file_shape(const char *path, PlDtype dtype, int ndim, const int64_t *shape, int64_t *bytes);
/* Remembers the errno that goes with a status made elsewhere, and returns the status. */
PlStatus pl_file_code(PlStatus s);

/* A file being written beside its destination. */
typedef struct PlFileTemp {
  int fd;              /* -1 once it is complete on disk */
  char *target, *temp; /* owned; temp is NULL once it has its name */
} PlFileTemp;

PlStatus pl_file_temp_open(PlFileTemp *f, const char *path);
/* fsync: what follows is the rename alone. For files that must get their names together. */
PlStatus pl_file_temp_flush(PlFileTemp *f);
/* Flush, rename onto the destination, fsync of the folder; releases f whatever happens. */
PlStatus pl_file_temp_commit(PlFileTemp *f);
/* Removes the temporary file and releases f. Keeps the message of the failure that led here. */
void pl_file_temp_abort(PlFileTemp *f);

/* Reverses the bytes of n elements of `size` bytes each. */
void pl_file_swap(void *data, int64_t n, size_t size);
#define PL_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)

#endif
