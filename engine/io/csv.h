/* SPDX-License-Identifier: MIT
 * Tables of text (RFC 4180 and its relatives): columns of numbers, booleans or text. The text is walked once to count
 * rows and find the columns' kinds, once to fill tensors, and once more if somebody wants text. */
#ifndef PL_ENGINE_IO_CSV_H
#define PL_ENGINE_IO_CSV_H

#include "engine/io/io.h"

typedef struct PlCsv PlCsv;

typedef struct PlCsvOptions {
  char delimiter, quote, comment; /* comment: lines that begin with it are skipped; 0: none. quote 0: none */
  bool header;                    /* the first line names the columns */
  const PlText *missing;          /* words that mean no value; the empty field always does */
  int nmissing;
  int64_t max_bytes; /* of the file; < 0: 4 GiB */
} PlCsvOptions;

/* DOUBLE: integers, some missing, that f64 holds and f32 does not. */
typedef enum PlCsvKind { PL_CSV_INT, PL_CSV_FLOAT, PL_CSV_DOUBLE, PL_CSV_BOOL, PL_CSV_TEXT } PlCsvKind;

/* Reads the file and checks it: every line has as many fields as the first. Errors: IO, FORMAT, OOM, INTERRUPT. */
PlStatus pl_csv_open(PlCsv **out, const char *path, const PlCsvOptions *o);
/* The same for bytes in memory, which must outlive it; name is for messages. */
PlStatus pl_csv_open_text(PlCsv **out, const char *name, const char *text, size_t n, const PlCsvOptions *o);
void pl_csv_release(PlCsv *c);
int64_t pl_csv_columns(const PlCsv *c);
int64_t pl_csv_rows(const PlCsv *c);
/* The name of column k, decoded, borrowed; "" without header. */
PlText pl_csv_name(const PlCsv *c, int64_t k);
/* What all values of column k are. Integers with missing values, and those beyond 64 bits, count as floats of a width that
 * holds them all, as text where none does: numbers that name things (keys, accounts) stay apart. */
PlCsvKind pl_csv_kind(const PlCsv *c, int64_t k);
int64_t pl_csv_missing(const PlCsv *c, int64_t k);
/* Fills one tensor [rows] for each k with wanted[k] < PL_NDTYPE, made by the caller with that dtype. A missing value is
 * NaN; in a column of no floating dtype, and where a value does not fit, the error names line and column. */
PlStatus pl_csv_fill(PlCsv *c, const PlDtype *wanted, PlTensor *const *out);
/* The next text of the columns with wanted[k] set, row by row; *s is decoded and valid until the next call, NULL for a
 * missing value. false after the last. */
bool pl_csv_next_text(PlCsv *c, const bool *wanted, int64_t *column, PlText *text);

#endif
