/* SPDX-License-Identifier: MIT
 * Zip archives, read: what npz and PyTorch's files are. Members are stored or deflated. The central directory is believed as
 * far as the file's size allows and the header in front of each member agrees; members may not overlap, so that all of them
 * together are no more than the file. */
#ifndef PL_ENGINE_IO_ZIP_H
#define PL_ENGINE_IO_ZIP_H

#include "engine/io/file.h"

enum { PL_ZIP_STORED = 0, PL_ZIP_DEFLATED = 8 };

typedef struct PlZipMember {
  const char *name; /* inside the directory's memory, not NUL-terminated */
  size_t len;
  int method;
  uint32_t crc;
  int64_t packed, size, at; /* bytes in the file, unpacked; the local header's place */
  int64_t data_at;          /* where the `packed` bytes begin */
} PlZipMember;

typedef struct PlZip {
  char *path;
  int fd;
  int64_t size, max_bytes;
  unsigned char *dir; /* the central directory, scratch */
  int64_t dir_at, dir_size;
  PlZipMember *member;         /* scratch, in the order of their bytes */
  const PlZipMember **by_name; /* behind them: the same in the order of their names */
  int64_t n;
} PlZip;

/* Opens an archive and checks its directory and the headers of all members; FORMAT if its members are more than max_bytes. Errors: IO, FORMAT, OOM, UNSUPPORTED
 * (encrypted, other methods). */
PlStatus pl_zip_open(PlZip **out, const char *path, int64_t max_bytes);
void pl_zip_release(PlZip *z);
/* The member of that name; NULL for none. */
const PlZipMember *pl_zip_find(const PlZip *z, const char *name, size_t n);

#endif
