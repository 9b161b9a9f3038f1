/* SPDX-License-Identifier: MIT
 * Decimal numbers from text that does not end in a zero byte. */
#ifndef PL_ENGINE_IO_PARSE_NUMBER_H
#define PL_ENGINE_IO_PARSE_NUMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct PlDecimal {
  bool plain;  /* written without point and exponent */
  bool is_int; /* that, and within 64 bits: then i holds it too */
  int64_t i;
  double f; /* correctly rounded */
} PlDecimal;

/* Blanks around it are allowed; inf, infinity and nan count, hexadecimal does not. */
bool pl_number_parse(const char *s, size_t n, PlDecimal *out);

#endif
