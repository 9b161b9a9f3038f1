/* SPDX-License-Identifier: MIT
 * The opcodes of Python's pickles (protocols 2 to 5; pickletools.py of CPython describes them), one at a time: those that data
 * is made of. What they mean together is decided in lua/perilune/io/pt.lua; nothing here or there runs code of a file. */
#ifndef PL_ENGINE_IO_PICKLE_H
#define PL_ENGINE_IO_PICKLE_H

#include "engine/io/io.h"

/* X(name): what Lua calls it. */
/* clang-format off */
#define PL_PICKLE_OPS(X) \
  X(stop) X(mark) X(pop) X(pop_mark) X(dup) X(none) X(yes) X(no) X(integer) X(number) X(text) X(big) X(empty_list) X(empty_dict) \
  X(empty_tuple) X(empty_set) X(tuple) X(tuple_of) X(list) X(dict) X(append) X(appends) X(setitem) X(setitems) X(additems) \
  X(frozenset) X(global) X(stack_global) X(reduce) X(newobj) X(build) X(get) X(put) X(memoize) X(persid)
/* clang-format on */

typedef enum PlPickleKind {
#define PL_PICKLE_KIND(name) PL_PICKLE_##name,
  PL_PICKLE_OPS(PL_PICKLE_KIND)
#undef PL_PICKLE_KIND
} PlPickleKind;

typedef struct PlPickleOp {
  PlPickleKind kind;
  int64_t i;     /* integer; tuple_of: how many; get, put: which */
  double f;      /* number */
  const char *s; /* text (also bytes), big (an integer of more than 64 bits, little-endian), global (its module) */
  size_t n;
  const char *name; /* global */
  size_t nname;
} PlPickleOp;

typedef struct PlPickle PlPickle;

/* Opcodes at byte `at` … end of fd, which stays the caller's, as path does. */
PlStatus pl_pickle_open(PlPickle **out, const char *path, int fd, int64_t at, int64_t end);
void pl_pickle_release(PlPickle *p);
/* The next one; what op points at lasts until the next call. Errors: IO, FORMAT (the pickle ends early, an opcode that there is
 * not, a text longer than the pickle), UNSUPPORTED (an opcode that data does not need), OOM. */
PlStatus pl_pickle_next(PlPickle *p, PlPickleOp *op);
/* Where the next byte is. */
int64_t pl_pickle_place(const PlPickle *p);
/* FORMAT, or UNSUPPORTED, with the file's name and place. */
PlStatus pl_pickle_bad(const PlPickle *p, PlStatus code, const char *why);

#endif
