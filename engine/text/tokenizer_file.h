/* SPDX-License-Identifier: MIT
 * What a tokenizer.json file becomes: filled by tokenizer_json.c, used by tokenizer.c. */
#ifndef PL_ENGINE_TEXT_TOKENIZER_FILE_H
#define PL_ENGINE_TEXT_TOKENIZER_FILE_H

#include "engine/text/normalize.h"

enum { PL_MAX_STEPS = 8 };

/* One step of the pre_tokenizer: a pattern; or (NULL) `text` in front of what begins without it, with `blanks` also in
 * place of every blank, with `first` only where the text begins. */
typedef struct PlStep {
  PlPattern *pattern;
  char text[8];
  bool blanks, prepend, first;
} PlStep;

struct PlTokenizer {
  PlBpe bpe;
  PlAdded *added;
  size_t nadded;
  PlTrie raw, cooked; /* added tokens that are looked for before and after normalizing */
  PlNormStep norm[PL_MAX_STEPS];
  int nnorm;
  PlStep step[PL_MAX_STEPS];
  int nstep;
  PlIds before, behind; /* what the template puts around a text */
  bool drop_first;      /* decoding: blanks of the first token are left out */
  char strip;           /* decoding: up to strip_left of these go from the beginning, strip_right from the end */
  int strip_left, strip_right;
};

#endif
