/* SPDX-License-Identifier: MIT
 * A leaf whose values move into other memory: what its module converts or sends to another device stays the same leaf. */
#include "engine/grad/node.h"

static void retarget(PlNode *n, PlTensor *to, const PlTensor *from) {
  if (n && n->kind <= PL_NODE_IDENTITY && n->u.target == from) n->u.target = to;
}

PlStatus pl_leaf_rehome(PlTensor *to, PlTensor *from) {
  if (!pl_shape_equal(&to->a, &from->a))
    PL_FAIL(PL_ERR_SHAPE, "%s cannot take the place of %s: the shapes differ", pl_desc_text(&to->a), pl_desc_text(&from->a));
  PL_TRY(pl_history_current(&from, 1));
  PlStatus s = pl_entries_copy(to, from, NULL); /* from keeps its own: recorded ops that saved it lead to the leaf */
  if (s != PL_OK) {
    pl_entries_drop(to);
    return s;
  }
  from->flags |= PL_T_LEFT;
  retarget(to->node, to, from);
  for (PlEntry *e = to->more; e; e = e->next) retarget(e->node, to, from);
  return PL_OK;
}
