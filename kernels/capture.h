/* SPDX-License-Identifier: MIT
 * Work that a device notes once and then repeats as a whole: the table "capture" (PlDeviceTable.extension). */
#ifndef PL_KERNELS_CAPTURE_H
#define PL_KERNELS_CAPTURE_H

#include "kernels/kernel.h"

typedef struct PlkCaptured PlkCaptured;

/* A block of memory that noted work takes. Times count what is taken and what is freed, in order. */
typedef struct PlkCapturePiece {
  int64_t bytes, birth, death; /* death: INT64_MAX: it is there as long as the work */
  int64_t at;                  /* where it is to be, if its place was planned */
} PlkCapturePiece;

typedef struct PlkCaptureRoom {
  int64_t n, bytes; /* of all of it */
  const PlkCapturePiece *piece;
} PlkCaptureRoom;

typedef struct PlkCaptureTable {
  /* From begin to end the calling thread's work on GPU number `gpu` is noted and not done. Memory that it takes meanwhile belongs
   * to what is captured: it is reused within, and elsewhere only after release. `room` says which blocks it will take and where
   * they are to be in one piece of memory, as `pieces` told of the same work before; what takes others gets them apart. NULL: the work
   * is noted for its pieces alone, in memory that may be anybody's, and can only be released. What needs a value from the
   * device fails; bytes that go to the device are the same at every repetition, but for two things:
   * Random numbers are drawn from what launch is given, as far behind it as they were behind begin's.
   * Settings: those of calls noted after settings(attrs) are read from `attrs` again at every launch, where their family
   * follows them. They stay where they are until release. */
  PlStatus (*begin)(int gpu, const PlkRng *rng, const PlkCaptureRoom *room);
  void (*settings)(const PlAttrs *attrs);                /* NULL: of no call from now on */
  PlStatus (*end)(PlkCaptured **out);                    /* *out NULL after a failure; always ends */
  PlStatus (*launch)(PlkCaptured *c, const PlkRng *rng); /* queues all of it once more */
  void (*release)(PlkCaptured *c);                       /* waits for it; NULL is fine */
  /* What it took, in order; valid until release. */
  const PlkCapturePiece *(*pieces)(const PlkCaptured *c, int64_t *n);
  /* Does the family follow its settings? *frozen: a number for those that it does not. */
  bool (*follows)(const char *family, const PlAttrs *attrs, int64_t *frozen);
} PlkCaptureTable;

#endif
