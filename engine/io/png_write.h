/* SPDX-License-Identifier: MIT
 * Images as PNG in memory, and the checksums of file formats. */
#ifndef PL_ENGINE_IO_PNG_WRITE_H
#define PL_ENGINE_IO_PNG_WRITE_H

#include "engine/io/io.h"

/* Bytes that pl_png_encode may need, or ARG when the size makes no sense. channels: 1 grey, 2 grey and alpha, 3 RGB,
 * 4 RGB and alpha; width and height 1 … 65535. */
PlStatus pl_png_bound(size_t *out, int64_t width, int64_t height, int channels);
/* Encodes 8-bit pixels, rows top-down without gaps, into `to`, which has pl_png_bound bytes; *n is how many are used.
 * Compressed with zlib where perilune is built with it, else stored. Errors: ARG, OOM. */
PlStatus pl_png_encode(uint8_t *to, size_t *n, const uint8_t *pixels, int64_t width, int64_t height, int channels);

/* CRC-32 with the reflected polynomial `poly`: 0xEDB88320 (zlib, PNG) or 0x82F63B78 (Castagnoli, CRC-32C). Start with
 * crc = 0; pass the result on to continue. */
uint32_t pl_crc32(uint32_t poly, uint32_t crc, const void *data, size_t n);

#endif
