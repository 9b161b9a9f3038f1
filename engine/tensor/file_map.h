/* SPDX-License-Identifier: MIT
 * Memory of tensors that is a part of a file: pages are read when they are touched, and copied when they are written, so that no
 * write reaches the file. A map is only made where the kernel tells before others change the file (a lease, fcntl(2)): whoever opens
 * it for writing, or truncates it, then waits until the pages are copies of this process. So values never change, and no
 * page is missing (SIGBUS). Files of other owners, on network file systems, or open for writing somewhere have no lease and no map:
 * they are read. Files that are renamed onto the path, or unlinked, do no harm: the map keeps its file. */
#ifndef PL_ENGINE_TENSOR_FILE_MAP_H
#define PL_ENGINE_TENSOR_FILE_MAP_H

#include "engine/perilune.h"

enum { PL_FILE_MAP_MIN = 1 << 16 }; /* fewer bytes are sooner read than mapped */

typedef struct PlFileLease PlFileLease;

/* What a reader has of its file. */
typedef struct PlFileMaps {
  bool wanted, asked;
  PlFileLease *lease; /* asked for when the first tensor wants it; NULL: none to have */
} PlFileMaps;

/* A tensor on the bytes of fd's file from `at` on. *out is NULL, without an error, where they must be read: maps are not wanted, there
 * is no lease to have, the file is about to be changed or shorter, the tensor small or not aligned to its elements. No two
 * tensors are on the same pages. Errors: SHAPE, OOM. */
PlStatus pl_file_map_tensor(PlTensor **out, PlFileMaps *f, int fd, int64_t at, PlDtype dtype, int ndim, const int64_t *shape);
/* The reader ends; tensors keep what they need. */
void pl_file_maps_end(PlFileMaps *f);
/* Before the map that begins at data is written: its memory becomes the process's own. (Who writes by an address that he was given
 * writes copies of single pages; only while another program begins to change the file could such a write be lost.) Errors: OOM. */
PlStatus pl_file_map_own(void *data);
/* Ends the map that begins at data. Any thread. */
void pl_file_unmap(void *data);
/* Bytes in maps now, of the whole process. */
int64_t pl_file_mapped_bytes(void);

#endif
