/* SPDX-License-Identifier: MIT
 * Expressions of tokenizer files, which are written for Oniguruma, in PCRE2's words. */
#ifndef PL_ENGINE_TEXT_ONIGURUMA_H
#define PL_ENGINE_TEXT_ONIGURUMA_H

#include <stddef.h>

/* The expression s of n bytes as PCRE2 has it (PCRE2_UTF, PCRE2_UCP, PCRE2_MULTILINE), *len bytes without a zero behind
 * them, to be freed. *why: what it has that PCRE2 has no words for, else NULL. NULL: no memory. */
char *pl_from_oniguruma(const char *s, size_t n, size_t *len, const char **why);

/* The scripts that \p{…} may name, from 0, without the prefix of property names; NULL behind the last. */
const char *pl_script_name(int i);

#endif
