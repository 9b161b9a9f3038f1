/* SPDX-License-Identifier: MIT
 * What the binding files of graphs share: the userdata that retain graphs and plans. */
#ifndef PL_BINDINGS_GRAPH_GRAPH_H
#define PL_BINDINGS_GRAPH_GRAPH_H

#include "bindings/core/lib.h"
#include "engine/graph/plan/plan.h"

typedef struct GraphBox {
  PlGraph *f;
} GraphBox;

typedef struct PlanBox {
  PlPlan *p;
  struct PlExec *exec; /* made at the first run */
} PlanBox;

extern const char l_graph_meta[], l_plan_meta[];
void l_graph_look_register(lua_State *L);
void l_graph_file_register(lua_State *L);
void l_graph_deploy_register(lua_State *L);

PlPlan *l_check_plan(lua_State *L, int i);   /* raises */
PlGraph *l_check_graph(lua_State *L, int i); /* raises */
GraphBox *l_new_graph(lua_State *L);         /* pushes an empty box */
/* Options that graph.lua has checked, from the table at t: {policy=0…3, fraction=, bytes=, seeded=, heavy=, listed=,
 * choice={per node of n: -1 pin, 0, 1 may, 2 force}}. choice is malloc'ed. */
void l_read_recompute(lua_State *L, int t, int n, PlRecomputeOptions *m);
/* Attribute k as scripts write it: positions count from 1. */
void l_push_attr(lua_State *L, const PlAttrDef *d, const PlAttrs *a, int k);
/* Pushes the table that predicates and dumps get of node i. */
void l_push_fnode(lua_State *L, const PlGraph *f, int32_t i);

#endif
