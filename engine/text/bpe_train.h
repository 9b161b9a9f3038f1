/* SPDX-License-Identifier: MIT
 * Learning the merges of byte-level BPE from text (Sennrich 2016): again and again the most frequent pair of neighbours
 * becomes a token. Words are cut by GPT-2's expression. Symbols: the 256 bytes in the order of their characters, then
 * what merges make, equal texts being one symbol; of equally frequent pairs the one of smaller numbers comes first, as
 * in the tokenizers library. */
#ifndef PL_ENGINE_TEXT_BPE_TRAIN_H
#define PL_ENGINE_TEXT_BPE_TRAIN_H

#include "engine/perilune.h"

typedef struct PlTrainer PlTrainer;

/* Errors: OOM, UNSUPPORTED (a build without PCRE2). */
PlStatus pl_trainer_new(PlTrainer **out);
void pl_trainer_release(PlTrainer *t);
/* Counts the words of a text. Errors: OOM, INTERRUPT. */
PlStatus pl_trainer_feed(PlTrainer *t, const char *text, size_t n);
/* Merges pairs that occur at least min_count times until there are nsymbol symbols. Once only. Errors: OOM, INTERRUPT.
 */
PlStatus pl_trainer_run(PlTrainer *t, int64_t nsymbol, int64_t min_count);
int64_t pl_trainer_merges(const PlTrainer *t);
void pl_trainer_merge(const PlTrainer *t, int64_t k, int32_t *left, int32_t *right, int32_t *result);
/* byte[k] is the byte that is symbol k. */
void pl_trainer_alphabet(uint8_t byte[256]);

#endif
