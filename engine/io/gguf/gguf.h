/* SPDX-License-Identifier: MIT
 * GGUF, versions 2 and 3 (ggml's docs/gguf.md): a magic number, version, counts; keys with values; for each tensor its name, sizes
 * (the fastest first), type and place; the tensors, aligned. Tensors are blocks of kernels/blocks.h, or plain numbers. */
#ifndef PL_ENGINE_IO_GGUF_H
#define PL_ENGINE_IO_GGUF_H

#include "engine/io/io.h"
#include "engine/io/wire.h"
#include "kernels/blocks.h"

typedef struct PlGguf PlGguf;

/* Opens a file and checks its whole header: counts and lengths against the file, kinds of values, texts in UTF-8, no name twice, sizes, types, rows
 * of whole blocks, places that are aligned, inside the file and apart. Errors: IO, FORMAT, UNSUPPORTED (a version or type that
 * is not known), OOM. */
PlStatus pl_gguf_open(PlGguf **out, const char *path);
void pl_gguf_release(PlGguf *g);
/* From now on pl_gguf_bytes, and whole tensors of numbers, are mapped where that is safe (tensor/file_map.h). */
void pl_gguf_map(PlGguf *g);

/* ---- keys and values ----------------------------------------------------------------------------------------- */

typedef enum PlGgufKind {
  PL_GGUF_U8,
  PL_GGUF_I8,
  PL_GGUF_U16,
  PL_GGUF_I16,
  PL_GGUF_U32,
  PL_GGUF_I32,
  PL_GGUF_F32,
  PL_GGUF_BOOL,
  PL_GGUF_TEXT,
  PL_GGUF_LIST,
  PL_GGUF_U64,
  PL_GGUF_I64,
  PL_GGUF_F64,
  PL_GGUF_KINDS
} PlGgufKind;

enum { PL_GGUF_MAX_DEPTH = 16 }; /* of lists in lists */

/* One value, or the elements of a list that are still to come. */
typedef struct PlGgufValue {
  PlGgufKind kind;  /* of the value, or of each element */
  int64_t n;        /* elements left of a list */
  const char *next; /* where the next one is */
} PlGgufValue;

typedef struct PlGgufItem {
  PlGgufKind kind;
  int64_t i; /* integers and bool; u64 keeps its bits */
  double f;
  PlText text;
  PlGgufValue list;
} PlGgufItem;

int64_t pl_gguf_keys(const PlGguf *g);
PlText pl_gguf_key(const PlGguf *g, int64_t i, PlGgufItem *value);
/* The next element of a list; false at its end. The header was checked: this cannot fail. */
bool pl_gguf_next(PlGgufValue *list, PlGgufItem *item);
const char *pl_gguf_kind_name(PlGgufKind kind); /* "u8" … "text", "list" */

/* ---- tensors -------------------------------------------------------------------------------------------------- */

int64_t pl_gguf_count(const PlGguf *g);
PlText pl_gguf_name(const PlGguf *g, int64_t i);
/* dtype: what reading gives if nothing else is asked for (f32 for blocks). shape has room for PL_MAX_DIM, slowest first.
 * Returns ggml's name of the type. */
const char *pl_gguf_describe(const PlGguf *g, int64_t i, PlDtype *dtype, int *ndim, int64_t *shape, int64_t *bytes);
int64_t pl_gguf_alignment(const PlGguf *g);
/* Reads count[d] elements from start[d] on of each dimension; of blocks only those that hold some. dtype: f32, f16, bf16 for blocks;
 * PL_NDTYPE for pl_gguf_describe's. Errors: IO, FORMAT, ARG, UNSUPPORTED (a type that is known by its size alone), OOM. */
PlStatus pl_gguf_part(PlGguf *g, int64_t i, const int64_t *start, const int64_t *count, PlDtype dtype, PlTensor **out);
/* The bytes of tensor i as they are, u8 [rows, bytes of a row]. */
PlStatus pl_gguf_bytes(PlGguf *g, int64_t i, PlTensor **out);

/* ---- writing --------------------------------------------------------------------------------------------------- */

typedef struct PlGgufTensor {
  PlText name;
  PlTensor *t;      /* numbers, or the blocks of format as they are: u8 [..., bytes of a row] */
  const char *type; /* ggml's name: "F16", "Q8_0" … */
  bool raw;         /* t holds bytes */
} PlGgufTensor;

/* Writes version 3, as safely as pl_safetensors_save. keys: the bytes of nkeys keys with their values. Errors: ARG (a dtype that is
 * not the type's, rows that are not whole blocks, numbers that are not finite, names), IO, OOM, INTERRUPT. */
PlStatus pl_gguf_save(const char *path, int64_t n, const PlGgufTensor *tensors, int64_t nkeys, PlText keys, int64_t alignment);

#endif
