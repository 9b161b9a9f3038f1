/* SPDX-License-Identifier: MIT
 * Unicode's normal forms (UAX 15), with the origin of every character. */
#ifndef PL_ENGINE_TEXT_NORMAL_FORM_H
#define PL_ENGINE_TEXT_NORMAL_FORM_H

#include "engine/text/aligned.h"

/* The old text of e becomes NFC, NFKC (compose) or NFD, NFKD. */
PlStatus pl_normal_form(PlEdit *e, bool compose, bool compatible);

#endif
