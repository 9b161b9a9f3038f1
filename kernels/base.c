/* SPDX-License-Identifier: MIT
 * Status messages and dtype facts. The message of the last failure is kept per thread, so a code and its
 * text cannot part. */
#include "kernels/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Written only by pl_fail, read by pl_message on the same thread. On the heap: room for thread-local data of a
 * module that is loaded late is scarce. pl_message_end frees it. */
enum { MESSAGE = 640 };
static _Thread_local char *last_message;
static const char no_room[] = "out of memory, also for the message that says so";

PlStatus pl_fail(PlStatus code, const char *fmt, ...) {
  /* An argument may point into last_message (a message passed on), so format aside first. */
  char text[MESSAGE];
  va_list args;
  va_start(args, fmt);
  if (vsnprintf(text, sizeof text, fmt, args) < 0) text[0] = '\0';
  va_end(args);
  if (!last_message || last_message == no_room) last_message = malloc(MESSAGE);
  if (last_message) memcpy(last_message, text, MESSAGE);
  else last_message = (char *)no_room; /* never written to */
  return code;
}

void pl_message_end(void) {
  if (last_message != no_room) free(last_message);
  last_message = NULL;
}

const char *pl_message(void) { return last_message ? last_message : ""; }

const char *pl_dtype_name(PlDtype d) {
  static const char *const name[PL_NDTYPE] = {
      [PL_F32] = "f32", [PL_F64] = "f64", [PL_F16] = "f16", [PL_BF16] = "bf16", [PL_I8] = "i8",
      [PL_I16] = "i16", [PL_I32] = "i32", [PL_I64] = "i64", [PL_U8] = "u8",     [PL_BOOL] = "bool",
  };
  return (unsigned)d < PL_NDTYPE ? name[d] : "?";
}
