/* SPDX-License-Identifier: MIT
 * t[key] and t[key] = v. A key is a position, a table {2, {1,3}, {}, mask}, a string "2, 1:3, :, ..., -1", or an
 * index tensor. Positions and ranges become views one after the other; tensors then go to one `index` op. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/core/lib.h"
#include "engine/call/thread_state.h"
#include "engine/graph/ir/graph.h"
#include "engine/ops/names.h"
#include "engine/vmap/vmap.h"

typedef enum Kind { AT, RANGE, ALL, ELLIPSIS, TENSOR } Kind;

typedef struct Item {
  Kind kind;
  int64_t a, b, step; /* 1-based, inclusive, negative from the end */
  PlTensor *t;
} Item;

enum { MAX_ITEMS = PL_MAX_DIM + 1 };

/* ---- reading keys ----------------------------------------------------------------------------------------- */

static void bad_item(lua_State *L, const char *what) {
  l_error(L, "index: %s; an entry is a position, {} for all, {from, to}, {from, to, step}, or an index tensor", what);
}

static void read_range(lua_State *L, int at, Item *it) {
  int n = (int)lua_rawlen(L, at);
  if (l_push_stray(L, at, n)) bad_item(L, lua_pushfstring(L, "a range with the entry '%s'", lua_tostring(L, -1)));
  if (n == 0) {
    *it = (Item){.kind = ALL};
    return;
  }
  int64_t v[3] = {0, 0, 1};
  if (n == 1 || n > 3) bad_item(L, "a range has two or three numbers");
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, at, i + 1);
    v[i] = l_check_int(L, lua_gettop(L), "index", "range");
    lua_pop(L, 1);
  }
  *it = (Item){.kind = RANGE, .a = v[0], .b = v[1], .step = v[2]};
}

static void read_item(lua_State *L, int at, Item *it) {
  Box *b = l_box(L, at);
  int64_t i;
  if (b) {
    if (!b->t) l_error(L, "index: an index tensor was freed");
    *it = (Item){.kind = TENSOR, .t = b->t};
  } else if (lua_type(L, at) == LUA_TTABLE) read_range(L, at, it);
  else if (l_to_int(L, at, &i)) *it = (Item){.kind = AT, .a = i};
  else if (lua_type(L, at) == LUA_TSTRING && strcmp(lua_tostring(L, at), "...") == 0) *it = (Item){.kind = ELLIPSIS};
  else {
    if (lua_type(L, at) == LUA_TNUMBER) {
      l_error(L, "index: positions are integers, got %g", lua_tonumber(L, at));
      return;
    }
    bad_item(L, lua_type(L, at) <= LUA_TBOOLEAN ? "for a new dimension of size 1 use x:unsqueeze(dim)" : l_typename(L, at));
  }
}

static bool read_number(const char **p, int64_t *v) {
  char *end;
  while (*p && isspace((unsigned char)**p)) ++*p;
  if (!(isdigit((unsigned char)**p) || **p == '-')) return false;
  *v = strtoll(*p, &end, 10);
  if (end == *p) return false;
  *p = end;
  while (isspace((unsigned char)**p)) ++*p;
  return true;
}

/* "2, 1:3, :, ..., ::2" */
static int parse_string(lua_State *L, const char *s, Item *items) {
  int n = 0;
  const char *p = s;
  for (;; p++) {
    while (isspace((unsigned char)*p)) p++;
    if (n == MAX_ITEMS) return l_error(L, "index: more than %d entries in \"%s\"", PL_MAX_DIM, s);
    Item *it = &items[n++];
    *it = (Item){.kind = AT, .a = 1, .b = -1, .step = 1};
    if (strncmp(p, "...", 3) == 0) {
      it->kind = ELLIPSIS;
      p += 3;
    } else {
      bool first = read_number(&p, &it->a);
      if (*p == ':') {
        it->kind = RANGE;
        p++;
        while (isspace((unsigned char)*p)) p++;
        if (!read_number(&p, &it->b) && *p && *p != ',' && *p != ':') return l_error(L, "index: unexpected '%c' in \"%s\"", *p, s);
        if (*p == ':') {
          p++;
          if (!read_number(&p, &it->step)) return l_error(L, "index: a step is missing in \"%s\"", s);
        }
      } else if (!first) return l_error(L, "index: \"%s\" is neither a method, a field, nor an index such as \"2, 1:3, :\"", s);
    }
    while (isspace((unsigned char)*p)) p++;
    if (*p == 0) return n;
    if (*p != ',') return l_error(L, "index: unexpected '%c' in \"%s\"", *p, s);
  }
}

static int read_key(lua_State *L, int at, Item *items) {
  if (lua_type(L, at) == LUA_TTABLE && !l_box(L, at)) {
    int n = (int)lua_rawlen(L, at);
    if (n == 0) return l_error(L, "index: an empty key; write t[{{}}] for all");
    if (n > MAX_ITEMS) return l_error(L, "index: %d entries, at most %d", n, PL_MAX_DIM);
    if (l_push_stray(L, at, n))
      return l_error(L, "index: a key is a list, one entry for a dimension; it has the entry '%s'", lua_tostring(L, -1));
    for (int i = 0; i < n; i++) {
      lua_rawgeti(L, at, i + 1);
      read_item(L, lua_gettop(L), &items[i]);
      lua_pop(L, 1); /* the key table keeps it */
    }
    return n;
  }
  if (lua_type(L, at) == LUA_TSTRING) return parse_string(L, lua_tostring(L, at), items);
  read_item(L, at, &items[0]);
  return 1;
}

/* ---- views ------------------------------------------------------------------------------------------------------ */

static int out_of_range(lua_State *L, PlTensor *t, int dim, int64_t i) {
  l_saw(t, PL_SAW_SHAPE);
  if (i == 0) return l_error(L, "index: 0 in dimension %d of %s; indices start at 1", dim + 1, pl_desc_text(&t->a));
  return l_error(L, "index: %lld is out of range for dimension %d of %s", (long long)i, dim + 1, pl_desc_text(&t->a));
}

/* One view op on the tensor on top of the stack; replaces it. */
static PlTensor *view(lua_State *L, const PlOp *op, int n, const int64_t *attrs) {
  PlAttrs a;
  pl_attrs_init(op, &a);
  for (int k = 0; k < n; k++) pl_attrs_int(&a, k, attrs[k]);
  PlTensor *t = l_to_tensor(L, -1);
  Box *b = l_new_box(L);
  PlStatus s = l_apply(L, op, &t, 1, &a, &b->t);
  if (s != PL_OK) l_fail(L, s);
  lua_replace(L, -2);
  return b->t;
}

/* Messages speak of the tensor as it was indexed: `whole` and its dimension `axis`. */
static PlTensor *take_range(lua_State *L, PlTensor *t, int dim, const Item *it, PlTensor *whole, int axis) {
  int64_t n = t->a.shape[dim], from = it->a, to = it->b;
  if (from < 0 || to < 0 || to == from - 1) l_saw(t, dim); /* an empty one is the same slice wherever it is */
  if (it->step < 1) l_error(L, "index: a step of %lld in dimension %d; steps are positive, use flip", (long long)it->step, axis + 1);
  if (from < 0) from += n + 1;
  if (to < 0) to += n + 1;
  bool empty = to == from - 1;
  if (from < 1 || from > n + 1 || (from > n && !empty)) out_of_range(L, whole, axis, it->a);
  if (to < 0 || to > n || (to < from && !empty)) {
    if (to >= from || it->b == 0) out_of_range(L, whole, axis, it->b);
    l_error(L, "index: the range %lld to %lld of dimension %d of %s runs backwards", (long long)it->a, (long long)it->b, axis + 1,
            pl_desc_text(&whole->a));
  }
  int64_t len = empty ? 0 : (to - from) / it->step + 1;
  int64_t attrs[4] = {dim, empty ? 0 : from - 1, len, it->step};
  return view(L, &pl_op_slice, 4, attrs);
}

/* How many dimensions an item consumes. */
static int width(const Item *it) {
  if (it->kind == ELLIPSIS) return 0;
  return it->kind == TENSOR && it->t->a.dtype == PL_BOOL && it->t->a.ndim > 0 ? it->t->a.ndim : 1;
}

/* Pushes the view that positions and ranges name; index tensors with the dimension they apply to go to tens/dims. */
static int apply_views(lua_State *L, int at, const Item *items, int n, PlTensor **tens, int64_t *dims, int *ntens) {
  PlTensor *t = l_to_tensor(L, at), *whole = t;
  int used = 0, ellipses = 0;
  for (int i = 0; i < n; i++) {
    used += width(&items[i]);
    ellipses += items[i].kind == ELLIPSIS;
  }
  if (used > t->a.ndim) return l_error(L, "index: %d indices for %s", used, pl_desc_text(&t->a));
  if (ellipses > 1) return l_error(L, "index: only one ... is possible");
  int skip = t->a.ndim - used, dim = 0, axis = 0; /* of t, and of the whole */
  lua_pushvalue(L, at);
  *ntens = 0;
  for (int i = 0; i < n; i++) {
    const Item *it = &items[i];
    switch (it->kind) {
    case ELLIPSIS: dim += skip; break;
    case ALL: dim++; break;
    case RANGE: t = take_range(L, t, dim++, it, whole, axis); break;
    case AT: {
      int64_t size = t->a.shape[dim], j = it->a < 0 ? it->a + size : it->a - 1;
      if (it->a < 0) l_saw(t, dim);
      if (it->a == 0 || j < 0 || j >= size) return out_of_range(L, whole, axis, it->a);
      int64_t attrs[2] = {dim, j};
      t = view(L, &pl_op_select, 2, attrs);
      break;
    }
    case TENSOR:
      if (it->t->a.dtype != PL_BOOL && !pl_is_int((PlDtype)it->t->a.dtype))
        return l_error(L, "index: an index tensor must be integer or bool, not %s", pl_desc_text(&it->t->a));
      tens[*ntens] = it->t;
      dims[(*ntens)++] = dim;
      dim += width(it);
      break;
    }
    axis += it->kind == ELLIPSIS ? skip : width(it);
  }
  return 0;
}

/* ---- get ------------------------------------------------------------------------------------------------------------ */

/* A number under a mask of its own rank: t[t:gt(0)]. */
static bool masks_number(const PlTensor *t, const Item *items, int n) {
  return t->a.ndim == 0 && n == 1 && items[0].kind == TENSOR && items[0].t->a.dtype == PL_BOOL && items[0].t->a.ndim == 0;
}

static int get_item(lua_State *L) {
  Item items[MAX_ITEMS];
  PlTensor *tens[MAX_ITEMS + 1];
  int64_t dims[MAX_ITEMS];
  int ntens;
  l_collect(L);
  int n = read_key(L, 2, items);
  if (masks_number(l_to_tensor(L, 1), items, n)) { /* none or one element */
    PlTensor *in[2] = {l_to_tensor(L, 1), items[0].t};
    Box *b = l_new_box(L);
    CALL(L, l_apply(L, &pl_op_masked_select, in, 2, NULL, &b->t));
    return 1;
  }
  apply_views(L, 1, items, n, tens + 1, dims, &ntens);
  if (ntens == 0) {
    if (lua_rawequal(L, -1, 1)) { /* t[{{}}]: a view of all */
      Box *b = l_new_box(L);
      PlTensor *t = l_to_tensor(L, 1);
      int64_t attrs[4] = {0, 0, t->a.ndim ? t->a.shape[0] : 0, 1};
      l_saw(t, PL_SAW_SHAPE);
      if (t->a.ndim == 0) return l_error(L, "index: %s has no dimension to index", pl_desc_text(&t->a));
      PlAttrs a;
      pl_attrs_init(&pl_op_slice, &a);
      for (int k = 0; k < 4; k++) pl_attrs_int(&a, k, attrs[k]);
      CALL(L, l_apply(L, &pl_op_slice, &t, 1, &a, &b->t));
    }
    return 1;
  }
  tens[0] = l_to_tensor(L, -1);
  const PlOp *op = &pl_op_index;
  PlAttrs a;
  pl_attrs_init(op, &a);
  CALL(L, pl_attrs_list(&a, 0, ntens, dims));
  pl_attrs_int(&a, 1, 1);
  Box *b = l_new_box(L);
  CALL(L, l_apply(L, op, tens, ntens + 1, &a, &b->t));
  return 1;
}

/* x.mT: the last two dims exchanged. */
static int matrix_transpose(lua_State *L, PlTensor *t) {
  if (t->a.ndim < 2) return l_error(L, "mT: a tensor of 2 or more dims is wanted, got %s", pl_desc_text(&t->a));
  PlAttrs a;
  pl_attrs_init(&pl_op_transpose, &a);
  pl_attrs_int(&a, 0, t->a.ndim - 2);
  pl_attrs_int(&a, 1, t->a.ndim - 1);
  l_collect(L);
  Box *r = l_new_box(L);
  CALL(L, l_apply(L, &pl_op_transpose, &t, 1, &a, &r->t));
  return 1;
}

static int get_field(lua_State *L, const char *key) {
  PlTensor *t = l_box(L, 1)->t;
  if (!t) return l_error(L, "%s: this tensor was freed", key);
  if (strcmp(key, "mT") == 0) return matrix_transpose(L, t);
  if (strcmp(key, "grad") == 0) {
    if (pl_state.trace) {
      CALL(L, pl_graph_saw_history(pl_state.trace, t));
      CALL(L, pl_graph_leaf_look(pl_state.trace, t));
    }
    l_push_grad(L, 1);
    return 1;
  }
  /* where the history cannot be followed, using the tensor says why; it has one if its base does */
  if (pl_history_current(&t, 1) != PL_OK) t = t->base ? t->base : t;
  const bool asks = strcmp(key, "requires_grad") == 0 || strcmp(key, "is_leaf") == 0 || strcmp(key, "grad_fn") == 0;
  if (asks && PL_UNLIKELY(pl_state.trace != NULL)) CALL(L, pl_graph_saw_history(pl_state.trace, t));
  if (strcmp(key, "requires_grad") == 0) return lua_pushboolean(L, pl_tensor_requires_grad(t)), 1;
  PlNode *n = NULL;
  uint32_t slot;
  bool tracked = pl_entry_get(t, pl_key_ambient(), &n, &slot);
  if (strcmp(key, "is_leaf") == 0) return lua_pushboolean(L, !tracked || n->kind == PL_NODE_LEAF), 1;
  if (strcmp(key, "grad_fn") == 0) {
    if (tracked && n->kind != PL_NODE_LEAF) lua_pushstring(L, n->name ? n->name : "identity");
    else lua_pushnil(L);
    return 1;
  }
  return 0;
}

static bool is_name(const char *s) {
  if (!isalpha((unsigned char)*s) && *s != '_') return false;
  while (isalnum((unsigned char)*s) || *s == '_') s++;
  return *s == 0;
}

/* __index. Upvalue 1: methods. */
static int box_index(lua_State *L) {
  int type = lua_type(L, 2);
  if (type == LUA_TSTRING) {
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
    const char *key = lua_tostring(L, 2);
    if (!l_box(L, 1)) return 0;
    if (get_field(L, key)) return 1;
    lua_settop(L, 2);
    if (is_name(key)) {                     /* an unknown one is nil, as for any Lua object, */
      lua_gettable(L, lua_upvalueindex(1)); /* loads the part that has the method, if one has */
      if (lua_isnil(L, -1) && luaL_getmetafield(L, lua_upvalueindex(1), "__attributes") == LUA_TTABLE &&
          lua_getfield(L, -1, key) == LUA_TSTRING)
        return l_error(L, "tensors have no field '%s'; %s", key, lua_tostring(L, -1)); /* but for PyTorch's attributes */
      lua_settop(L, 2);
      return 1;
    }
  }
  Box *b = l_box(L, 1);
  if (!b) return 0;
  if (!b->t) return l_error(L, "index: this tensor was freed");
  int64_t i;
  if (type == LUA_TNUMBER && l_to_int(L, 2, &i)) {
    PlTensor *t = b->t;
    if (t->a.ndim == 0) return l_error(L, "index: %s has no dimension to index; use x:item()", pl_desc_text(&t->a));
    if (i < 0 || i > t->a.shape[0]) l_saw(t, 0);
    if (i == t->a.shape[0] + 1) return 0; /* ipairs stops here */
    int64_t j = i < 0 ? i + t->a.shape[0] : i - 1;
    if (i == 0 || j < 0 || j >= t->a.shape[0]) return out_of_range(L, t, 0, i);
    PlAttrs a;
    pl_attrs_init(&pl_op_select, &a);
    pl_attrs_int(&a, 0, 0);
    pl_attrs_int(&a, 1, j);
    l_collect(L);
    Box *r = l_new_box(L);
    CALL(L, l_apply(L, &pl_op_select, &t, 1, &a, &r->t));
    return 1;
  }
  return get_item(L);
}

/* ---- set ------------------------------------------------------------------------------------------------------------- */

static int set_field(lua_State *L, PlTensor *t, const char *key) {
  if (strcmp(key, "grad") == 0) {
    PlTensor *g = l_to_tensor(L, 3);
    if (!g && !lua_isnil(L, 3)) return l_error(L, "grad: a tensor or nil expected, got %s", l_typename(L, 3));
    if (!g || g == pl_grad(t) || pl_state.trace || g->a.symbolic) {
      CALL(L, pl_set_grad(t, g));
      if (g) l_remember_box(L, 3);
      return 1;
    }
    PlTensor *own; /* what is written into one later is not to be written into the other; and it is dense */
    CALL(L, g->node || g->more || (g->flags & PL_T_BATCHED) ? pl_apply(&pl_op_clone, &g, 1, NULL, &own) : pl_tensor_copy(&own, g));
    PlStatus s = pl_set_grad(t, own);
    pl_tensor_release(own);
    CALL(L, s);
    return 1;
  }
  if (strcmp(key, "requires_grad") == 0) {
    if (!lua_isboolean(L, 3)) return l_error(L, "requires_grad: true or false is wanted, got %s", l_typename(L, 3));
    CALL(L, pl_requires_grad(t, lua_toboolean(L, 3)));
    l_remember_box(L, 1);
    return 1;
  }
  return 0;
}

static int value_tensor(lua_State *L, PlTensor *like, PlTensor **v) {
  *v = l_to_tensor(L, 3);
  if (*v) return 0;
  if (l_box(L, 3)) return l_error(L, "index: the value was freed");
  if (lua_type(L, 3) == LUA_TNUMBER || lua_type(L, 3) == LUA_TBOOLEAN) {
    l_check_stored(L, 3, (PlDtype)like->a.dtype, "index");
    if (lua_isboolean(L, 3) && like->a.dtype != PL_BOOL)
      return l_error(L, "index: the value is a boolean, the tensor %s; == and ~= compare Lua objects, elementwise it is a:eq(b)",
                     pl_desc_text(&like->a));
    Box *b = l_new_box(L);
    CALL(L, pl_tensor_empty(&b->t, (PlDtype)like->a.dtype, 0, NULL));
    if (lua_isinteger(L, 3) || lua_isboolean(L, 3))
      pl_write_i((PlDtype)like->a.dtype, b->t->a.data, lua_isboolean(L, 3) ? lua_toboolean(L, 3) : (int64_t)lua_tointeger(L, 3));
    else pl_write_f((PlDtype)like->a.dtype, b->t->a.data, lua_tonumber(L, 3));
    *v = b->t;
    return 0;
  }
  return l_error(L, "index: the value must be a tensor or a number, got %s%s", l_typename(L, 3),
                 lua_type(L, 3) == LUA_TTABLE ? "; T.tensor { … } makes one" : "");
}

/* v without the dims of size 1 before its last ndim ones, as index_put and PyTorch take it: h[t] = cell(x[t]) of one sample. */
static int without_leading_ones(lua_State *L, PlTensor **v, int ndim) {
  if ((*v)->a.ndim > ndim) l_saw(*v, PL_SAW_ONES);
  while ((*v)->a.ndim > ndim && (*v)->a.shape[0] == 1) {
    PlAttrs a;
    pl_attrs_init(&pl_op_select, &a);
    for (int k = 0; k < 2; k++) pl_attrs_int(&a, k, 0); /* the first of dim 0 */
    Box *b = l_new_box(L);
    CALL(L, l_apply(L, &pl_op_select, v, 1, &a, &b->t));
    *v = b->t;
  }
  return 0;
}

/* target[mask] = v, one number of the target's dtype, has the target's shape whatever the mask says: masked_fill can be
 * traced, index_put of a mask cannot. false: another case, or the mask does not fit, which index_put says better. */
static bool fill_at_mask(lua_State *L, PlTensor *target, PlTensor *mask, int dim, PlTensor *v) {
  if (mask->a.dtype != PL_BOOL || v->a.ndim || v->a.dtype != target->a.dtype) return false;
  for (int d = 0; d < mask->a.ndim; d++)
    if (mask->a.shape[d] != target->a.shape[dim + d]) return false;
  l_saw(mask, PL_SAW_ONES), l_saw(target, PL_SAW_ONES); /* at other sizes it must not broadcast, either */
  for (int d = mask->a.ndim; dim + d < target->a.ndim; d++) {
    PlAttrs a;
    pl_attrs_init(&pl_op_unsqueeze, &a);
    pl_attrs_int(&a, 0, d);
    Box *b = l_new_box(L);
    CALL(L, l_apply(L, &pl_op_unsqueeze, &mask, 1, &a, &b->t));
    mask = b->t;
  }
  PlTensor *in[3] = {target, mask, v};
  CALL(L, pl_apply_into(&pl_op_masked_fill, in, 3, NULL, &target));
  return true;
}

/* __newindex */
static int box_newindex(lua_State *L) {
  Box *b = l_box(L, 1);
  if (!b) return l_error(L, "index: not a tensor");
  if (!b->t) return l_error(L, "index: this tensor was freed");
  if (lua_type(L, 2) == LUA_TSTRING) {
    const char *key = lua_tostring(L, 2);
    if (set_field(L, b->t, key)) return 0;
    if (is_name(key) && strcmp(key, "data") == 0)
      return l_error(L, "tensors have no assignable field 'data'; values are changed by T.no_grad(function() x:copy_(t) end)");
    if (is_name(key)) return l_error(L, "tensors have no assignable field '%s' (only grad and requires_grad)", key);
  }
  l_collect(L);
  Item items[MAX_ITEMS];
  PlTensor *tens[MAX_ITEMS + 2], *v, *out;
  int64_t dims[MAX_ITEMS];
  int ntens, n = read_key(L, 2, items);
  value_tensor(L, b->t, &v);
  if (masks_number(b->t, items, n)) {
    PlTensor *in[3] = {b->t, items[0].t, v}, *y = b->t;
    CALL(L, pl_apply_into(&pl_op_masked_fill, in, 3, NULL, &y));
    return 0;
  }
  if (pl_state.trace && !pl_behind(b->t)->a.symbolic) { /* a graph that writes a part knows the whole */
    PlGVal whole;
    CALL(L, pl_graph_capture(pl_state.trace, pl_behind(b->t), &whole));
  }
  apply_views(L, 1, items, n, tens + 2, dims, &ntens);
  PlTensor *target = l_to_tensor(L, -1);
  if (ntens == 0) {
    without_leading_ones(L, &v, target->a.ndim);
    PlTensor *in[2] = {target, v};
    CALL(L, l_apply(L, &pl_op_copy, in, 2, NULL, &out));
    pl_tensor_release(out);
    return 0;
  }
  if (ntens == 1 && fill_at_mask(L, target, tens[2], (int)dims[0], v)) return 0;
  PlAttrs a;
  pl_attrs_init(&pl_op_index_put, &a);
  CALL(L, pl_attrs_list(&a, 0, ntens, dims));
  tens[0] = target;
  tens[1] = v;
  CALL(L, pl_apply_into(&pl_op_index_put, tens, ntens + 2, &a, &target));
  return 0;
}

void l_index_register(lua_State *L) {
  l_box_metatable(L);
  lua_getfield(L, -1, "methods");
  lua_pushcclosure(L, box_index, 1);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, box_newindex);
  lua_setfield(L, -2, "__newindex");
  lua_pop(L, 1);
}
