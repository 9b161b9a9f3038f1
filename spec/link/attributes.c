/* SPDX-License-Identifier: MIT
 * Attributes by their names: each kind is set as by position, and what does not fit is refused with what would. */
#include <stdio.h>
#include <string.h>

#include "engine/ops/op.h"
#include "engine/perilune.h"

static int faults;

static void check(bool fine, const char *what) {
  if (fine) return;
  faults++;
  printf("%s\n", what);
}

static void refused(PlStatus s, const char *message) {
  check(s == PL_ERR_ARG, message);
  if (strcmp(pl_message(), message) != 0) {
    faults++;
    printf("got:    %s\nwanted: %s\n", pl_message(), message);
  }
}

/* Whatever an op's table says can be set by name, and lands where it stands in the table. */
static void all_ops(void) {
  int n = 0, set = 0;
  const PlOp *const *ops = pl_ops(&n);
  for (int i = 0; i < n; i++)
    for (int k = 0; pl_op_attr(ops[i], k); k++) {
      const PlOp *op = ops[i];
      const PlAttrDef *d = &op->attrs[k];
      const int64_t list[2] = {3, 4};
      const double floats[2] = {1.5, -2.5};
      char word[64] = "";
      PlAttrs a;
      PlStatus s = PL_OK;
      pl_attrs_init(op, &a);
      const bool is_list = d->type == PL_A_INTS || d->type == PL_A_SHAPE || d->type == PL_A_DIMS;
      if (is_list) s = pl_attrs_set_list(op, &a, d->name, 2, list);
      else if (d->type == PL_A_FLOATS) s = pl_attrs_set_floats(op, &a, d->name, 2, floats);
      else if (d->type == PL_A_FLOAT) s = pl_attrs_set_float(op, &a, d->name, 1.5);
      else if (d->type == PL_A_ENUM) {
        const char *last = strrchr(d->choices, '|');
        snprintf(word, sizeof word, "%s", last ? last + 1 : d->choices);
        s = pl_attrs_set_word(op, &a, d->name, word);
      } else s = pl_attrs_set_int(op, &a, d->name, 1);
      check(s == PL_OK && pl_attr_has(&a, k), d->name);
      if (is_list) check(pl_attr_n(&a, k) == 2 && pl_attr_list(&a, k)[1] == 4, d->name);
      else if (d->type == PL_A_FLOATS) check(pl_attr_n(&a, k) == 2 && memcmp(pl_attr_list(&a, k), floats, sizeof floats) == 0, d->name);
      else if (d->type == PL_A_FLOAT) check(pl_attr_f(&a, k) == 1.5, d->name);
      else if (d->type == PL_A_ENUM) {
        int choices = 0;
        for (const char *c = d->choices; c; c = strchr(c + 1, '|')) choices++;
        check(pl_attr_i(&a, k) == choices - 1, d->name);
      } else check(pl_attr_i(&a, k) == 1, d->name);
      s = pl_attrs_set_none(op, &a, d->name);
      check(d->optional ? s == PL_OK && !pl_attr_has(&a, k) : s == PL_ERR_ARG, d->name);
      set++;
    }
  check(set > 300, "few attributes");
}

int main(void) {
  const PlOp *sum = pl_op_find("sum"), *adam = pl_op_find("adam_step"), *loss = pl_op_find("mse_loss"), *add = pl_op_find("matmul");
  const int64_t list[2] = {0, 1};
  PlAttrs a, before;
  all_ops();
  pl_attrs_init(sum, &a);
  before = a;
  refused(pl_attrs_set_int(sum, &a, "dmis", 0), "sum has no attribute 'dmis' (dim, keepdim, dtype)");
  refused(pl_attrs_set_int(sum, &a, "keepdim", 2), "sum: attribute keepdim is 0 or 1, got another integer");
  refused(pl_attrs_set_float(sum, &a, "dim", 1), "sum: attribute dim is a list of integers or none, got a float");
  refused(pl_attrs_set_list(sum, &a, "keepdim", 2, list), "sum: attribute keepdim is 0 or 1, got a list of integers");
  refused(pl_attrs_set_int(sum, &a, "dtype", 99), "sum: attribute dtype is a PlDtype or none, got another integer");
  refused(pl_attrs_set_none(sum, &a, "keepdim"), "sum: attribute keepdim is 0 or 1, got none");
  refused(pl_attrs_set_int(add, &a, "dims", 1), "matmul has no attribute 'dims' (it has none)");
  check(memcmp(&a, &before, pl_attrs_size(&a)) == 0, "a refusal changes nothing");
  pl_attrs_init(loss, &a);
  refused(pl_attrs_set_word(loss, &a, "reduction", "maen"), "mse_loss: attribute reduction is a word of none|mean|sum, got 'maen'");
  check(pl_attrs_set_int(sum, &before, "dim", 1) == PL_OK && pl_attr_n(&before, 0) == 1, "one number is a list of one");
  pl_attrs_init(adam, &a);
  check(pl_attrs_set_int(adam, &a, "lr", 1) == PL_OK, "an integer is a float as well");
  puts(faults ? "wrong" : "ok");
  return faults != 0;
}
