/* SPDX-License-Identifier: MIT
 * Work that a device notes once and then repeats as a whole: the table "capture" (PlDeviceTable.extension). */
#ifndef PL_KERNELS_CAPTURE_H
#define PL_KERNELS_CAPTURE_H

#include "kernels/kernel.h"

typedef struct PlkCaptured PlkCaptured;

typedef struct PlkCaptureTable {
  /* From begin to end the calling thread's work on the device is noted and not done. Memory that it takes meanwhile belongs
   * to what is captured: it is handed out again within, and elsewhere only after release. What needs a value from the
   * device fails; bytes that go to the device are the same at every repetition. */
  PlStatus (*begin)(void);
  PlStatus (*end)(PlkCaptured **out); /* *out NULL after a failure; always ends */
  PlStatus (*launch)(PlkCaptured *c); /* queues all of it once more */
  void (*release)(PlkCaptured *c);    /* waits for it; NULL is fine */
} PlkCaptureTable;

#endif
