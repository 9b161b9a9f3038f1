/* SPDX-License-Identifier: MIT
 * What a tokenizer.json file becomes: filled by tokenizer_json.c, used by tokenizer.c. */
#ifndef PL_ENGINE_TEXT_TOKENIZER_FILE_H
#define PL_ENGINE_TEXT_TOKENIZER_FILE_H

#include "engine/text/split.h"

enum { PL_MAX_STEPS = 8 };

/* One step of the pre_tokenizer: a pattern, or (NULL) a blank in front of what begins without one. */
typedef struct PlStep {
  PlPattern *pattern;
} PlStep;

struct PlTokenizer {
  PlBpe bpe;
  PlAdded *added;
  size_t nadded;
  PlTrie raw, cooked; /* added tokens that are looked for before and after normalizing (which does nothing here) */
  PlStep step[PL_MAX_STEPS];
  int nstep;
  PlIds before, behind; /* what the template puts around a text */
};

#endif
