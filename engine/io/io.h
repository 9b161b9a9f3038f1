/* SPDX-License-Identifier: MIT
 * Reading and writing tensors as files: safetensors, npy, PNG and JPEG (both ways), IDX (also gzipped) and npz
 * (reading).
 *
 * Files are untrusted: every size is checked against the file before anything is
 * allocated for it, a malformed file is PL_ERR_FORMAT, and a failed write leaves the old
 * file as it was. pl_io_code() is the errno behind this thread's last failure here
 * (EBADMSG: malformed file), for callers that pass it on. */
#ifndef PL_ENGINE_IO_IO_H
#define PL_ENGINE_IO_IO_H

#include "engine/perilune.h"

int pl_io_code(void);

typedef struct PlText { /* bytes with a length */
  const char *s;
  size_t n;
} PlText;
bool pl_utf8_valid(const char *s, size_t n);
/* Bytes of the well-formed character at s, 0 for a malformed one. n > 0. */
size_t pl_utf8_char(const char *s, size_t n);

/* ---- safetensors --------------------------------------------------------------------------------------- */

enum { PL_SAFETENSORS_MAX_HEADER = 100000000 }; /* the format's own limit, in bytes */

typedef struct PlSafetensors PlSafetensors; /* an opened file with a checked header */

/* Opens `path` and checks its whole header: lengths, JSON, names (no duplicates), dtypes,
 * shapes, offsets (in order, without holes or overlap, ending at the end of the file).
 * Errors: IO, FORMAT, UNSUPPORTED (a dtype that nobody knows), OOM. */
PlStatus pl_safetensors_open(PlSafetensors **out, const char *path);
void pl_safetensors_release(PlSafetensors *s);
/* From now on whole tensors that need no conversion are mapped where that is safe (tensor/file_map.h), others read as before. */
void pl_safetensors_map(PlSafetensors *s);
int64_t pl_safetensors_count(const PlSafetensors *s);
/* Name of tensor i (0-based, in file order), borrowed, not NUL-terminated. */
const char *pl_safetensors_name(const PlSafetensors *s, int64_t i, size_t *len);
/* What tensor i becomes (dtype PL_NDTYPE: nothing that perilune has); shape has room for PL_MAX_DIM. */
void pl_safetensors_describe(const PlSafetensors *s, int64_t i, PlDtype *dtype, int *ndim, int64_t *shape);
/* The format's name of its dtype, "F8_E4M3", and how many bytes it has in the file. */
const char *pl_safetensors_stored(const PlSafetensors *s, int64_t i, int64_t *bytes);
/* Reads tensor i. Errors: IO, FORMAT (a bool that is neither 0 nor 1), UNSUPPORTED, OOM. */
PlStatus pl_safetensors_read(PlSafetensors *s, int64_t i, PlTensor **out);
/* The same for count[d] elements from start[d] on of each dimension: only these are read. Also ARG (outside the shape). */
PlStatus pl_safetensors_part(PlSafetensors *s, int64_t i, const int64_t *start, const int64_t *count, PlTensor **out);
/* The next pair of `__metadata__`, borrowed; false at the end. Each pair is given out
 * once. */
bool pl_safetensors_next_meta(PlSafetensors *s, const char **key, size_t *nkey, const char **value, size_t *nvalue);

/* Bytes for a second file that goes with one. */
typedef struct PlBeside {
  const char *path;
  PlText bytes;
} PlBeside;

/* Writes n tensors and nmeta metadata pairs (meta[2k] is a key, meta[2k+1] its value) to
 * `path`: into a temporary file beside it, fsync, rename, fsync of the folder. Any
 * layout; dtype by dtype from wide to narrow, then by name. Errors: ARG (duplicate or
 * reserved name, text that is not UTF-8), IO, OOM, INTERRUPT; then the old file is
 * untouched and the temporary one gone. `beside` (or NULL) is replaced right after it, and
 * neither before both are on disk. */
PlStatus pl_safetensors_save(const char *path, int64_t n, const PlText *names, PlTensor *const *tensors, int64_t nmeta, const PlText *meta,
                             const PlBeside *beside);

/* ---- IDX ----------------------------------------------------------------------------------------------- */

/* Reads an IDX file (two zero bytes, a type byte, the number of dimensions, big-endian
 * sizes, data), gzipped or not. u8 i8 i16 i32 f32 f64. The file must hold exactly the
 * declared elements; at most max_bytes of them (< 0: 4 GiB), and a gzipped one no more
 * than deflate can expand to. Errors: IO, FORMAT, OOM, INTERRUPT, UNSUPPORTED (gzip
 * without zlib). */
PlStatus pl_idx_load(PlTensor **out, const char *path, int64_t max_bytes);

/* ---- ONNX: elements as they lie in memory ---------------------------------------------------------------------------- */

/* A tensor of a file's elements, little-endian and row-major, from byte `from` on. Errors: IO, FORMAT (it ends before), OOM,
 * INTERRUPT. (elements.c) */
PlStatus pl_tensor_of_bytes(PlTensor **out, const char *path, int64_t from, PlDtype dtype, int ndim, const int64_t *shape);

/* ---- NumPy: npy and npz ------------------------------------------------------------------------------------------ */

/* Reads an npy file, versions 1 to 3: bool, i8 … i64, u8, f16, f32, f64 of either byte order; u16 and u32 become i32
 * and i64. Fortran order gives a view with strides of its own. Errors: IO, FORMAT, OOM, INTERRUPT, UNSUPPORTED (other
 * dtypes). */
PlStatus pl_npy_load(PlTensor **out, const char *path, int64_t max_bytes);
/* Writes npy, version 1, little-endian, C order, as safely as pl_safetensors_save. Errors: ARG (bf16), IO, OOM. */
PlStatus pl_npy_save(const char *path, PlTensor *t);

typedef struct PlZip PlNpz; /* an opened zip archive of npy files, its directory checked */

/* At most max_bytes (< 0: 4 GiB) for all members together. */
PlStatus pl_npz_open(PlNpz **out, const char *path, int64_t max_bytes);
void pl_npz_release(PlNpz *z);
int64_t pl_npz_count(const PlNpz *z);
/* Name of member i (0-based) without ".npy", borrowed, not NUL-terminated. */
bool pl_npz_is_array(const PlNpz *z, int64_t i); /* else it is some other file in the archive */
const char *pl_npz_name(const PlNpz *z, int64_t i, size_t *len);
PlStatus pl_npz_read(PlNpz *z, int64_t i, PlTensor **out);
/* Writes n arrays, stored, as safely as pl_safetensors_save. Errors: ARG (bf16, names), IO, OOM. */
PlStatus pl_npz_save(const char *path, int64_t n, const PlText *names, PlTensor *const *tensors);

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* A whole file as u8 [n]; max_bytes < 0: 4 GiB. */
PlStatus pl_bytes_load(PlTensor **out, const char *path, int64_t max_bytes);
/* The first n bytes of a file, or all it has; *got says how many. */
PlStatus pl_bytes_head(const char *path, void *to, size_t n, size_t *got);
/* Replaces a file by n bytes, or keeps it as it was; what is no regular file (a terminal, a pipe) is written to. */
PlStatus pl_bytes_save(const char *path, const void *data, size_t n);
/* The entries of a folder in no order, in memory from malloc (NULL if there are none): for each one letter ('d' folder,
 * 'f' file, '?' else), its name, a zero byte. */
PlStatus pl_folder_list(const char *path, char **out, size_t *n);

/* ---- packed weights (packed_weights.c) ---------------------------------------------------------------------------- */

typedef struct PlPackedWeights {
  int bits;      /* 2, 3, 4 or 8; of AWQ 4 */
  bool awq;      /* qweight is [in, out / 8], in pairs; else [in bits / 32, out], a stream along in */
  bool less_one; /* zeros are stored one less than they are (GPTQ's first format) */
  int64_t in, out;
  int64_t group_size; /* inputs of a group */
} PlPackedWeights;
/* Contiguous tensors of the CPU: qweight, qzeros [groups, out bits / 32] and g_idx [in], the group of an input, or NULL, are i32, scales
 * f32 [groups, out]. *out: u8 [out, bytes of a row] in blocks of *format, which hold the same numbers, or f32 [out, in] and *format NULL,
 * where none does or with numbers. Errors: ARG (sizes that do not go together), INDEX (g_idx), OOM, INTERRUPT. */
PlStatus pl_packed_weights(const PlPackedWeights *p, PlTensor *qweight, PlTensor *qzeros, PlTensor *scales, PlTensor *g_idx, bool numbers,
                           PlTensor **out, const char **format);

/* ---- images ------------------------------------------------------------------------------------------------------ */

/* A PNG or JPEG file as u8 [C, H, W], a view on interleaved memory. c: 0 the file's channels, 1 gray, 3 RGB, 4 RGBA.
 * max_bytes bounds the pixels (< 0: 512 MiB). Errors: IO, FORMAT, OOM, UNSUPPORTED (CMYK, a build without the library).
 */
PlStatus pl_image_load(PlTensor **out, const char *path, int c, int64_t max_bytes);
/* The same from memory; name is for messages. */
PlStatus pl_image_decode(PlTensor **out, const char *name, const void *bytes, size_t n, int c, int64_t max_bytes);
/* u8 [C, H, W] or [H, W] as PNG (C 1 to 4) or JPEG (C 1 or 3; quality 1 to 100), by the ending of path. */
PlStatus pl_image_save(const char *path, PlTensor *t, int quality);

#endif
