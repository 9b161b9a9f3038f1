/* SPDX-License-Identifier: MIT
 * PyTorch's files: the zip archive of torch 1.6 and later (NAME/data.pkl, a pickle, beside NAME/data/KEY, the bytes of
 * storages), and the format before it (five pickles, then the storages one behind another). This is their container; the pickle
 * is read by lua/perilune/io/pt.lua with the opcodes of pickle.h. */
#ifndef PL_ENGINE_IO_PT_H
#define PL_ENGINE_IO_PT_H

#include "engine/io/pickle.h"
#include "engine/io/wire.h"

typedef struct PlPt PlPt;

/* Errors: IO, FORMAT (neither format), UNSUPPORTED (a TorchScript archive, compressed members), OOM. */
PlStatus pl_pt_open(PlPt **out, const char *path);
void pl_pt_release(PlPt *t);
bool pl_pt_is_zip(const PlPt *t);
/* Begins to read the pickle: in a zip archive data.pkl from its first byte; in the old format at byte `at`. */
PlStatus pl_pt_begin(PlPt *t, int64_t at, PlPickle **pickle);
/* The n elements of storage `key` of a zip archive, or of the bytes at *at of an old file, which is moved behind them, as a tensor
 * [n]. Errors: IO, FORMAT (no such storage, another length than n elements, a length in front that is not n), OOM. */
PlStatus pl_pt_storage(PlPt *t, const char *key, size_t nkey, const PlWire *wire, int64_t n, int64_t *at, PlTensor **out);

#endif
