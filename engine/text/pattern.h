/* SPDX-License-Identifier: MIT
 * Regular expressions of tokenizer files, matched by PCRE2 with limits: a hostile file's expression ends in an error, not
 * in a hang. A pattern is constant after it is made; what matching writes to is in a PlMatcher, one a thread. */
#ifndef PL_ENGINE_TEXT_PATTERN_H
#define PL_ENGINE_TEXT_PATTERN_H

#include "engine/perilune.h"

typedef struct PlPattern PlPattern;
typedef struct PlMatcher PlMatcher;

/* GPT-2's expression for words. */
extern const char pl_gpt2_pattern[];
/* Compiles. Classes mean what they do in Oniguruma, which such files are written for: \s is White_Space, \w has the letters'
 * marks, \h is a hexadecimal digit. Errors: FORMAT (not an expression), UNSUPPORTED (intersections of classes; a build
 * without PCRE2), OOM. */
PlStatus pl_pattern_new(PlPattern **out, const char *name, const char *regex, size_t n);
/* Matches this text. */
PlStatus pl_pattern_literal(PlPattern **out, const char *name, const char *text, size_t n);
void pl_pattern_release(PlPattern *p);

PlStatus pl_matcher_new(PlMatcher **out);
void pl_matcher_release(PlMatcher *m);

/* All of the text, piece by piece: matches and what is between. An empty match is one only where `empty` is set. Errors:
 * f's, FORMAT (matching takes too long), INTERRUPT. */
typedef PlStatus (*PlMatchFn)(void *ctx, const char *s, size_t n, bool match);
PlStatus pl_pattern_each(const PlPattern *p, PlMatcher *m, const char *s, size_t n, bool empty, PlMatchFn f, void *ctx);

/* The script of a character, from 1; 0: none (unassigned). Compiled once, on first use by one thread: pl_scripts_ready. */
PlStatus pl_scripts_ready(const char *name, PlPattern **out);
int pl_script_of(const PlPattern *p, PlMatcher *m, const char *s, size_t n);

#endif
