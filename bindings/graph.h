/* SPDX-License-Identifier: MIT
 * What the binding files of graphs share: the userdata that retain flows and plans. */
#ifndef PL_BINDINGS_GRAPH_H
#define PL_BINDINGS_GRAPH_H

#include "bindings/lib.h"
#include "engine/graph/plan.h"

typedef struct FlowBox {
  PlFlow *f;
} FlowBox;

typedef struct PlanBox {
  PlPlan *p;
} PlanBox;

PlPlan *l_check_plan(lua_State *L, int i); /* raises */
PlFlow *l_check_flow(lua_State *L, int i); /* raises */
FlowBox *l_new_flow(lua_State *L);         /* pushes an empty box */
/* Pushes the table that predicates and dumps get of node i. */
void l_push_fnode(lua_State *L, const PlFlow *f, int32_t i);

#endif
