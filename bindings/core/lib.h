/* SPDX-License-Identifier: MIT
 * What the binding files share: boxes, argument checks, the one door for errors. Idiom of every function here:
 * validate, push an empty box, call the engine, then CALL turns a status into an error at the caller's line. */
#ifndef PL_BINDINGS_CORE_LIB_H
#define PL_BINDINGS_CORE_LIB_H

#include <lauxlib.h>
#include <lua.h>

#include "engine/call/autocast.h"
#include "engine/grad/node.h"
#include "engine/graph/ir/calls.h"
#include "engine/tensor/alloc.h"
#include "engine/tensor/tensor.h"

/* A tensor's userdata. What its gradient history needs of Lua, the history keeps itself (collector/kept.h). */
typedef struct Box {
  PlTensor *t; /* NULL after free() */
  uint64_t magic;
} Box;
#define BOX_MAGIC 0x9e0df4a3f251e1b7ULL /* no text, no pointer, no small number */

/* ---- boxes (box.c) ---- */
static inline Box *l_box(lua_State *L, int i) {
  Box *b = lua_touserdata(L, i); /* NULL for other types; a light userdata has length 0 */
  return b && lua_rawlen(L, i) == sizeof(Box) && b->magic == BOX_MAGIC ? b : NULL;
}
/* The tensor at i or NULL (also for a freed one). */
static inline PlTensor *l_to_tensor(lua_State *L, int i) {
  Box *b = l_box(L, i);
  return b ? b->t : NULL;
}
PlTensor *l_self(lua_State *L, const char *fn); /* argument 1 of method fn; raises: not a tensor, freed */
PlTensor *l_check_tensor(lua_State *L, int i);  /* raises: not a tensor, freed */
/* Lua sees a size of t: dimension dim from 0 on, or PL_SAW_… (engine/graph/ir/calls.h). Every function that tells one, or does
 * something else for another one, says so; bindings/jit/watched.c knows which ones do. */
static inline void l_saw(PlTensor *t, int dim) {
  if (PL_UNLIKELY(pl_state.trace != NULL || t->a.symbolic)) pl_calls_saw(t, dim);
}
int l_is_contiguous(lua_State *L); /* x:is_contiguous(format) (tensor/memory_format.c) */
/* t, which must have values: raises for symbolic tensors, and those that stand for many inside vmap. */
PlTensor *l_concrete(lua_State *L, PlTensor *t, const char *fn);
/* t itself where the CPU holds it; else a copy there, in a box that is pushed (device/device.c). */
PlTensor *l_on_host(lua_State *L, PlTensor *t);
void l_put_on(lua_State *L, int device); /* the new tensor on top of the stack goes there */
/* One element as a 0-d array; *room takes it where it has to be fetched. */
PlArray l_element(lua_State *L, const PlTensor *t, int64_t byte_offset, uint64_t *room);
struct PlDeviceTable;
const struct PlDeviceTable *l_device_table(lua_State *L); /* raises why there is none */
int l_check_gpu(lua_State *L, int at, const char *fn);    /* its number or name; nil: the current one */
void l_device_streams(lua_State *L);                      /* its functions about streams, into the table on top */
int l_check_device(lua_State *L, int at, const char *fn); /* PL_CPU, PL_CUDA + i; raises why it cannot be used */
void l_device_register(lua_State *L);
void l_group_register(lua_State *L);
void l_recurrent_register(lua_State *L);
Box *l_new_box(lua_State *L); /* pushes an empty box */
/* The same Lua object each time the same handle is pushed. Borrows t. */
int l_push_shared(lua_State *L, PlTensor *t);
/* For callers that have the table of boxes (l_push_boxes) as an upvalue: pushes the living box of t; false if there is none. */
void l_push_boxes(lua_State *L);
bool l_push_known(lua_State *L, int boxes, PlTensor *t);
int l_push_grad(lua_State *L, int i); /* pushes the .grad of the full box at i, or nil */
void l_made_late(lua_State *L);
/* Call with each new object that has a finalizer on top of the stack. */
static inline void l_note_late(lua_State *L) {
  if (PL_UNLIKELY(lua_gc(L, LUA_GCCOUNT) < 0)) l_made_late(L); /* inside a finalizer lua_gc refuses */
}
/* The same for a fresh box, which has a finalizer only in states that cannot do without (box.c). */
extern bool l_boxes_have_gc;
extern unsigned char l_box_notes; /* of the process: whether boxes have __gc; whether collections are forced (collector/collect_forced.c) */
enum { L_NOTE_LATE = 1, L_NOTE_POINT = 2 };
void l_collect_point(lua_State *L);
static inline void l_note_box(lua_State *L) {
  const unsigned char notes = __atomic_load_n(&l_box_notes, __ATOMIC_RELAXED);
  if (PL_LIKELY(notes == 0)) return;
  if (notes & L_NOTE_LATE) l_note_late(L);
  if (PL_UNLIKELY(notes & L_NOTE_POINT)) l_collect_point(L);
}
void l_empty_box(lua_State *L);               /* releases the tensor of the full box at 1 */
void l_remember_box(lua_State *L, int i);     /* box i is what l_push_shared will find */
void l_box_moves(lua_State *L, PlTensor *to); /* the full box at 1 is `to`'s from now on */
/* Inside the vmap of that number: do keys made outside of it track t, or what it stands for? */
bool l_outer_tracked(PlTensor *t, uint64_t born);
int l_seal(lua_State *L);             /* core.seal(): see box.c */
int l_result_metatable(lua_State *L); /* pushes the metatable of new boxes; without __gc where possible */
int l_box_metatable(lua_State *L);    /* pushes the metatable, made at first call */

/* ---- errors (error.c) ---- */
int l_fail(lua_State *L, PlStatus s);                                           /* raises pl_message() at the caller's line */
int l_error(lua_State *L, const char *fmt, ...) PL_PRINTF(2, 3);                /* raises this text there */
int l_error_as(lua_State *L, PlStatus s, const char *fmt, ...) PL_PRINTF(3, 4); /* the same with a status: PL_ERR_TRACE */
int l_jit_refused(lua_State *L); /* core.jit_refused([on]) → did an error with PL_ERR_TRACE reach Lua since it was set to false? */
/* core.raised() → status ("interrupt", …) of the last error since core.raised(false), or nil. core.raised(true): the error that the
 * caller raises next is Ctrl-C's. */
int l_raised(lua_State *L);
/* core.attempt(f, …): pcall for who goes another way where f fails. What says nothing of f is raised on: pl_must_report. */
int l_attempt(lua_State *L);
int l_parameters(lua_State *L);    /* core.parameters, see error.c */
int l_is_one_object(lua_State *L); /* core.is_one_object, see error.c */
int l_speak(lua_State *L);         /* core.speak, see error.c */
int l_where(lua_State *L);         /* pushes "file:line: " of the caller */
/* Finds the first frame outside the files below `home`; pushes nothing. Fields S and l of ar are filled. */
bool l_locate(lua_State *L, const char *home, lua_Debug *ar);
int l_failure(lua_State *L, PlStatus s); /* pushes nil, message, code; returns 3 */
const char *l_status_name(PlStatus s);
/* Saves the error value on top of the stack for PL_ERR_CALLBACK, pops it. */
PlStatus l_keep_error(lua_State *L);
void l_errors_register(lua_State *L);
#define CALL(L, expr)                                         \
  do {                                                        \
    PlStatus call_ = (expr);                                  \
    if (PL_UNLIKELY(call_ != PL_OK)) return l_fail(L, call_); \
  } while (0)
/* The same for what works long and makes much in one call, such as ops and backward: where memory is out in it, the garbage of this state is
 * collected (collector/collect.c). expr raises nothing; what scripts do in hooks comes back. */
extern _Thread_local lua_State *l_working_for; /* NULL: nobody, nothing is collected */
#define WORK(L, status, expr)           \
  do {                                  \
    lua_State *before_ = l_working_for; \
    l_working_for = (L);                \
    (status) = (expr);                  \
    l_working_for = before_;            \
  } while (0)

/* ---- collector (collector/collect.c) ---- */
extern _Thread_local int64_t l_collect_at_alloc, l_collect_at_live, l_collect_at_device;
void l_collect_slow(lua_State *L);
void l_collect_full(lua_State *L); /* until nothing more goes */
void l_collect_once(lua_State *L);
void l_reclaim_register(lua_State *L); /* the engine's pl_reclaim */
/* Where a function has run whose values were dropped; allocated_before: pl_allocated_bytes() when it began. Collects, if it made
 * much. */
void l_collect_dropped(lua_State *L, int64_t allocated_before);
/* Another coroutine than at the last look may have another switch for recording (autograd/grad_mode.c). */
void l_modes_switch(lua_State *L);
/* A scope of this coroutine begins (step 1) or ends (-1); from here on these are its modes. */
void l_modes_set(lua_State *L, int step, bool recording, PlAutocast autocast);
/* Before modes are changed around Lua code by other means: notes those of the main thread, which would be taken from the changed ones when a
 * coroutine opens its first scope there. Are modes kept by coroutines? Then only l_modes_set changes them. */
bool l_modes_kept(lua_State *L);
/* lua_pcall of the function on top with ud, for what the engine calls, such as hooks: what that leaves of no_grad and mixed precision ends
 * with it. Room for two values is needed; after a failure its error is on top. */
int l_call_in_modes(lua_State *L, void *ud);
/* Something begins that is L's alone → a number to keep with it; 0: of the main thread, which always runs. It ends, whoever says so. */
uint64_t l_owner_begins(lua_State *L);
/* Of what opens something that the script closes: its next instruction, which notes that, is not interrupted. */
void l_interrupt_spare(void);
void l_owner_ends(lua_State *L, uint64_t owner);
static inline void l_modes_follow(lua_State *L) {
  if (PL_UNLIKELY(pl_state.mode_owner && pl_state.mode_owner != L)) l_modes_switch(L);
}
extern _Thread_local bool l_collect_tested; /* PERILUNE_COLLECT says when: collector/collect_forced.c */
bool l_collect_storage_due(void);           /* is this memory for a tensor one before which it says to collect? */
void l_collect_test_register(lua_State *L);
/* At the entry of every op, before any raw pointer is taken. */
static inline void l_collect(lua_State *L) {
  l_modes_follow(L);
  if (PL_UNLIKELY(pl_allocated_bytes() >= l_collect_at_alloc || pl_live_bytes() >= l_collect_at_live ||
                  __atomic_load_n(&pl_device_handed_out, __ATOMIC_RELAXED) >= l_collect_at_device))
    l_collect_slow(L);
}

/* ---- arguments (args.c) ---- */
bool l_to_int(lua_State *L, int i, int64_t *out); /* integers and whole floats; no strings */
int64_t l_check_int(lua_State *L, int i, const char *fn, const char *arg);
PlDtype l_check_dtype(lua_State *L, int i, const char *fn);
bool l_dtype_by_name(const char *s, PlDtype *out);
/* A shape from a table at i, or from the integers i … top. */
int l_check_shape(lua_State *L, int i, const char *fn, int64_t *shape);
bool l_opt_bool(lua_State *L, int table, const char *key, bool def);
/* No argument is dropped: raises if there are more than n that are not nil; names: what they are. */
void l_too_many(lua_State *L, const char *fn, int n, const char *names);
static inline void l_check_count(lua_State *L, const char *fn, int n, const char *names) {
  if (PL_UNLIKELY(lua_gettop(L) > n)) l_too_many(L, fn, n, names);
}
/* Unknown keys of the option table at i raise, naming the allowed ones ("a b c"). */
void l_check_options(lua_State *L, int i, const char *fn, const char *allowed);
/* Raises if there are arguments, other than nil, behind the n-th; 0. */
int l_at_most(lua_State *L, int n, const char *fn);
/* Does the table at i have a key besides 1 … n? Then its text is pushed. */
bool l_push_stray(lua_State *L, int i, lua_Integer n);
/* Raises if the number at i has no place in an integer dtype; 0. Fractions are cut off, as in PyTorch. */
int l_check_fits(lua_State *L, int i, PlDtype d, const char *fn);
/* The same of a number for a tensor whose dtype the call does not name: it has no fraction, either, where that holds integers. */
int l_check_stored(lua_State *L, int i, PlDtype d, const char *fn);
const char *l_did_you_mean(lua_State *L, const char *word, const char *allowed);
int l_nearest(lua_State *L);
int l_in_modules(lua_State *L);
int l_same(lua_State *L);
const char *l_typename(lua_State *L, int i); /* "f32[2,3]", "a freed tensor", "nil", "number" … */

/* ---- ops (ops/call.c) ---- */
int l_op_call(lua_State *L); /* upvalue 1: light userdata op */
/* The table named `attrs` of the table at `options`, if there is one, into the attributes of op. */
void l_read_attrs(lua_State *L, const PlOp *op, int options, PlAttrs *a);
void l_ops_register(lua_State *L); /* module table on top: functions and core.ops */
/* Applies op; on OOM collects fully and tries once more. */
PlStatus l_apply(lua_State *L, const PlOp *op, PlTensor *const *in, int nin, const PlAttrs *a, PlTensor **out);

/* ---- parts, each adds its functions to the tables it is given ---- */
void l_tensor_register(lua_State *L); /* module on top: is_tensor, methods of tensors */
void l_layout_register(lua_State *L);
void l_tensor_new_register(lua_State *L); /* tensor, from_string */
/* The number, boolean or 0-d tensor at stack position `at` as an element; other values, which callers exclude, write nothing. */
void l_write_value(lua_State *L, int at, PlDtype d, void *to);
enum { L_POLL = 1 << 14 }; /* Lua values between two looks at Ctrl-C */
void l_index_register(lua_State *L);
void l_grad_register(lua_State *L);
void l_custom_register(lua_State *L);
void l_pull_register(lua_State *L);
void l_batch_register(lua_State *L);
void l_checkpoint_register(lua_State *L);
/* Lua objects that the engine has let go (collector/kept.h) go, if they are more than a few. */
void l_kept_settle(lua_State *L, int few);
void l_forward_register(lua_State *L);
void l_anomaly_register(lua_State *L);
void l_autocast_register(lua_State *L);
void l_debug_register(lua_State *L);
void l_profile_register(lua_State *L);
void l_tools_register(lua_State *L);
void l_system_register(lua_State *L);
void l_io_register(lua_State *L);
void l_reader_register(lua_State *L);
void l_readline_register(lua_State *L);
void l_files_register(lua_State *L);
void l_facts_register(lua_State *L);
void l_workers_register(lua_State *L);
void l_csv_register(lua_State *L);
void l_image_register(lua_State *L);
void l_characters_register(lua_State *L);
void l_tokenizer_register(lua_State *L);
void l_t7_register(lua_State *L);
void l_pt_register(lua_State *L);
void l_gguf_register(lua_State *L);
void l_rebind_register(lua_State *L);
void l_modes_register(lua_State *L);
void l_trainer_register(lua_State *L);
void l_saved_register(lua_State *L);
void l_remat_register(lua_State *L);
int luaopen_perilune_engine(lua_State *L) __attribute__((visibility("default")));

/* ---- handles (handle.c) ---- */
/* A userdata that owns one object of the engine. Its metatable, made with the first one, has the methods, close(), and
 * __gc, which is the same. */
typedef struct Handle {
  void *p; /* NULL: not filled yet, or closed */
} Handle;
typedef struct HandleType {
  const char *name, *what; /* of the metatable; for "csv: closed" */
  void (*release)(void *p);
  const luaL_Reg *methods;
  int nkept; /* user values: what the object points into */
} HandleType;
Handle *l_new_handle(lua_State *L, const HandleType *type);        /* pushes an empty one */
void *l_check_handle(lua_State *L, int i, const HandleType *type); /* raises: something else, closed */

/* ---- files (io/files.c) ---- */
/* nil, message, code, errno for what the environment refused; raises anything else. */
int l_io_failure(lua_State *L, PlStatus s);
const char *l_check_path(lua_State *L, int i, const char *fn); /* a path without embedded zeros */
void l_graph_register(lua_State *L);
void l_jit_register(lua_State *L);
void l_jit_guards_register(lua_State *L);

/* Adds functions to the table at the top; `methods` are put into the metatable's method table. */
void l_add_methods(lua_State *L, const luaL_Reg *regs);

/* The table kept in the registry under key, made at first use; mode: "v" weak values, "k" weak keys. */
void l_push_weak_table(lua_State *L, const void *key, const char *mode);

const char *l_intern(lua_State *L, const char *name); /* the same text, valid for the life of the state */

/* Runs a Lua function from inside the engine: the state that entered it last. */
extern _Thread_local lua_State *l_running;

#endif
