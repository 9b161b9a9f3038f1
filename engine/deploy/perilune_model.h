/* SPDX-License-Identifier: MIT
 * perilune's C ABI for programs that run models: libperilune.so.1, without Lua. This header needs nothing else of perilune.
 *
 * A model is a saved graph: T.save_graph(path, graph) writes one, of T.graph or of a jitted function's :graph(), and
 * `perilune convert model.onnx PATH.graph` writes one of an ONNX file.
 *
 *   perilune_model *m;
 *   perilune_session *s;
 *   if (perilune_model_load("net.graph", NULL, &m)) fail(perilune_message());
 *   if (perilune_session_new(m, &s)) fail(perilune_message());
 *   const void *in[] = {image};
 *   void *out[] = {scores};
 *   if (perilune_session_run(s, in, 1, out, 1)) fail(perilune_message());
 *
 * Errors. Functions that can fail return a perilune_status, 0 for success; the text is perilune_message(), of the calling
 * thread. What was to be given out is written on success alone.
 * Ownership. Models and sessions belong to the caller and are released by their _release, which takes NULL. A session keeps its
 * model. Names and shapes that are told live as long as the model. Memory for inputs and outputs is the caller's.
 * Threads. A model may be used by any number of threads. A session is one thread's at a time: another that comes into it meanwhile gets
 * STATE, and nobody waits. Two sessions of one model run at once, share the weights, and have everything else apart: after the first run (at
 * its sizes) a session of one thread takes no lock. Results do not depend on the number of threads or sessions, to the bit.
 * Memory. Tensors are contiguous and row-major: element (i, j) of a shape {m, n} is number i * n + j. Addresses are multiples
 * of the element's size. Sizes of a model are fixed when it is saved, but for those that were left free by name: see below.
 * Versions. The library's soname is libperilune.so.1, its symbols have the version PERILUNE_1. In one major version functions
 * and enumerators are added, never changed; perilune_abi_version() says what the library has. */
#ifndef PERILUNE_MODEL_H
#define PERILUNE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PERILUNE_API __attribute__((visibility("default")))
#else
#define PERILUNE_API
#endif

/* Of this header: 1000 * major + minor. */
#define PERILUNE_ABI_VERSION 1004
/* Of the library that was loaded: it has everything of this header if its thousands are the same and it is not smaller. */
PERILUNE_API int32_t perilune_abi_version(void);
/* The release, "0.1.0". */
PERILUNE_API const char *perilune_release(void);

typedef int32_t perilune_status;
enum {
  PERILUNE_OK = 0,
  PERILUNE_ERR_ARG = 1,          /* an argument is out of its range, NULL where it may not be, or of no known name */
  PERILUNE_ERR_SHAPE = 2,        /* a size or a number of elements is not that of the model */
  PERILUNE_ERR_DTYPE = 3,        /* … a dtype */
  PERILUNE_ERR_INDEX = 4,        /* an index VALUE among the inputs is out of its range */
  PERILUNE_ERR_OOM = 5,          /* out of memory */
  PERILUNE_ERR_STATE = 6,        /* not now, or not with this model */
  PERILUNE_ERR_IO = 7,           /* a file cannot be read or written */
  PERILUNE_ERR_FORMAT = 8,       /* a file is damaged, or is none of perilune's */
  PERILUNE_ERR_INTERRUPT = 10,   /* perilune_stop */
  PERILUNE_ERR_UNSUPPORTED = 11, /* what this library cannot do; the message says what to do instead */
  PERILUNE_ERR_TRACE = 12,       /* a saved graph needs what graphs cannot stand for */
  PERILUNE_ERR_DEVICE = 13       /* a kernel on a device found an index or a number out of its range; the outputs are undefined */
};
/* What the calling thread's last failure was; "" if there was none. Until its next failure. Never NULL. */
PERILUNE_API const char *perilune_message(void);

/* Kinds of elements. f16 and bf16 are their bits in a uint16_t, bool is a uint8_t of 0 or 1. */
typedef int32_t perilune_dtype;
enum {
  PERILUNE_F32 = 0,
  PERILUNE_F64 = 1,
  PERILUNE_F16 = 2,
  PERILUNE_BF16 = 3,
  PERILUNE_I8 = 4,
  PERILUNE_I16 = 5,
  PERILUNE_I32 = 6,
  PERILUNE_I64 = 7,
  PERILUNE_U8 = 8,
  PERILUNE_BOOL = 9
};
/* Bytes of an element; 0 for what is no dtype. */
PERILUNE_API size_t perilune_dtype_size(perilune_dtype dtype);
/* "f32" …; "?" for what is none. */
PERILUNE_API const char *perilune_dtype_name(perilune_dtype dtype);

/* ---- models ------------------------------------------------------------------------------------------------------------ */

typedef struct perilune_model perilune_model;

typedef struct perilune_options {
  size_t size;        /* sizeof(perilune_options): what is behind it is not looked at, and has its default */
  const char *device; /* where it runs: "cpu" (NULL), "cuda" or "cuda:1", with the plug-in perilune_cuda.so, which is found as
                       * PERILUNE_CUDA_PLUGIN says. Inputs and outputs are the host's in any case */
} perilune_options;

/* Reads PATH and PATH.safetensors, checks them, and plans the model's memory. Files are not trusted: no file makes it read
 * outside of these two, run code, or crash. options NULL: defaults. Errors: ARG (device), IO, FORMAT (with the line),
 * UNSUPPORTED (an ONNX file; a device that is not there), OOM. */
PERILUNE_API perilune_status perilune_model_load(const char *path, const perilune_options *options, perilune_model **out);
PERILUNE_API void perilune_model_release(perilune_model *m);

typedef struct perilune_tensor_info {
  const char *name;     /* of an input as it was declared ("x1" for a jitted function's first argument), of an output its key, "1" …*/
  const int64_t *shape; /* ndim sizes; -1: it is free */
  size_t bytes;         /* of all elements; 0 if some size is free */
  perilune_dtype dtype;
  int32_t ndim;
} perilune_tensor_info;

PERILUNE_API int32_t perilune_model_input_count(const perilune_model *m);
PERILUNE_API int32_t perilune_model_output_count(const perilune_model *m);
/* What input or output i (from 0) is. Errors: ARG. */
PERILUNE_API perilune_status perilune_model_input(const perilune_model *m, int32_t i, perilune_tensor_info *out);
PERILUNE_API perilune_status perilune_model_output(const perilune_model *m, int32_t i, perilune_tensor_info *out);
/* Number of the input or output of that name; -1: there is none. */
PERILUNE_API int32_t perilune_model_input_find(const perilune_model *m, const char *name);
PERILUNE_API int32_t perilune_model_output_find(const perilune_model *m, const char *name);
/* ---- free sizes: T.save_graph(path, f, inputs, {dynamic=, sizes=}), and of a jitted function's graph T.save_graph(path, graph, {…}), leaves sizes of inputs free within bounds, such as a batch or the
 * length of a text. A session has its own, which are set by name or by the shapes of inputs, and are the example's until then; what its inputs
 * and outputs are then, it tells (perilune_session_output); of a model that trains perilune_model_set_size sets them. For each set of sizes memory is planned once, as when loading; a model keeps
 * the last 16 of these plans, a session memory for the last 4. So few different sizes are faster than many. ---- */

typedef struct perilune_size_info {
  const char *name;
  int64_t example, least, most; /* what it was when the model was saved, and between what it may be */
} perilune_size_info;
PERILUNE_API int32_t perilune_model_size_count(const perilune_model *m);
/* Free size i, from 0. Errors: ARG. */
PERILUNE_API perilune_status perilune_model_size(const perilune_model *m, int32_t i, perilune_size_info *out);
/* What dimension d (from 0) of input or output i is: the name of a free size, a formula such as "2*batch+1", or "?" for another
 * dependence on them; NULL: it is fixed, or there is none. */
PERILUNE_API const char *perilune_model_input_dim(const perilune_model *m, int32_t i, int32_t d);
PERILUNE_API const char *perilune_model_output_dim(const perilune_model *m, int32_t i, int32_t d);

/* Bytes of its weights, and of what one session of the CPU needs between its inputs and outputs (the arena). */
PERILUNE_API int64_t perilune_model_weight_bytes(const perilune_model *m);
PERILUNE_API int64_t perilune_model_arena_bytes(const perilune_model *m);
/* 1: a run of it writes into its weights, so it is a training step for perilune_model_step; 0: sessions run it. */
PERILUNE_API int32_t perilune_model_trains(const perilune_model *m);

/* ---- sessions: running ------------------------------------------------------------------------------------------------- */

typedef struct perilune_session perilune_session;

/* What one thread needs to run m. Errors: STATE (m trains), UNSUPPORTED (m draws random numbers, as dropout in training mode
 * does), OOM. */
PERILUNE_API perilune_status perilune_session_new(perilune_model *m, perilune_session **out);
PERILUNE_API void perilune_session_release(perilune_session *s);
/* Threads of a run, 1 by default: the right number for servers whose threads have a session each. Errors: ARG (n < 1). */
PERILUNE_API perilune_status perilune_session_set_threads(perilune_session *s, int32_t n);
/* Sets a free size, for runs to come. Errors: ARG (there is none of that name), SHAPE (beyond its bounds). */
PERILUNE_API perilune_status perilune_session_set_size(perilune_session *s, const char *name, int64_t value);
/* Sets the free sizes that input i has, so that its shape is this one. After an error sizes are as they were. Errors: ARG, SHAPE (another number of
 * dimensions, another fixed size, beyond a bound), UNSUPPORTED (a size that is a formula). */
PERILUNE_API perilune_status perilune_session_set_shape(perilune_session *s, int32_t i, const int64_t *shape, int32_t ndim);
/* What input or output i is at the sizes that are set; shape and bytes hold until others are set, or the session goes. Errors: ARG; SHAPE (an
 * op of the model refuses these sizes), UNSUPPORTED, OOM. */
PERILUNE_API perilune_status perilune_session_input(perilune_session *s, int32_t i, perilune_tensor_info *out);
PERILUNE_API perilune_status perilune_session_output(perilune_session *s, int32_t i, perilune_tensor_info *out);
/* Runs the model: in[nin] are the addresses of all inputs, out[nout] of all outputs, as many bytes each as their info says. An
 * output shares no memory with an input or another output. After an error outputs are undefined, and the session may go on.
 * Errors: SHAPE (another count; an op refuses the sizes that are set), ARG (NULL, addresses), INDEX, OOM, INTERRUPT. */
PERILUNE_API perilune_status perilune_session_run(perilune_session *s, const void *const *in, int32_t nin, void *const *out, int32_t nout);
/* Runs it into memory of the session's own; perilune_session_result tells where. */
PERILUNE_API perilune_status perilune_session_run_inside(perilune_session *s, const void *const *in, int32_t nin);
/* Output i of the last run_inside, until the next, or until other sizes are set; NULL: it has not run, or there is no such output. */
PERILUNE_API const void *perilune_session_result(const perilune_session *s, int32_t i);

/* ---- training ---------------------------------------------------------------------------------------------------------- */

/* One run of a model that trains: a saved graph of a jitted function that calls backward and its optimizer's step. Its weights
 * and the optimizer's state are the model's and change; the optimizer's count of steps moves by one. in and out as in
 * perilune_session_run (what the function returned, then gradients that it leaves in leaves). One call at a time runs, further
 * ones wait. n threads, < 1: 1. Errors: STATE (it does not train), and those of a run; after one of a run itself weights may
 * be partly new. */
PERILUNE_API perilune_status perilune_model_step(perilune_model *m, int32_t threads, const void *const *in, int32_t nin, void *const *out,
                                                 int32_t nout);
/* Sets a free size, for steps to come, such as the last batch's of a pass, and what input or output i is at the sizes that are set; shape holds
 * until other sizes are set. Sizes are the model's, and the example's until then: threads that make steps of one model agree upon them.
 * Weights, optimizers and draws go on from size to size. Errors: STATE (it does not train; sessions have sizes of their own), ARG (no such
 * size, input or output), SHAPE (beyond its bounds; an op of the model refuses these sizes), OOM. */
PERILUNE_API perilune_status perilune_model_set_size(perilune_model *m, const char *name, int64_t value);
PERILUNE_API perilune_status perilune_model_step_input(perilune_model *m, int32_t i, perilune_tensor_info *out);
PERILUNE_API perilune_status perilune_model_step_output(perilune_model *m, int32_t i, perilune_tensor_info *out);
/* Sets a number of all optimizers of the model, such as "lr" or "weight_decay", or "step", their count of steps so far
 * (not where more is kept of these: NAdam, ASGD, Prodigy, the schedule-free ones).
 * Errors: ARG (none of them has it, or it does not take this value), STATE (it does not train). */
PERILUNE_API perilune_status perilune_model_set(perilune_model *m, const char *name, double value);
/* The first one's number. Errors: as above. */
PERILUNE_API perilune_status perilune_model_get(perilune_model *m, const char *name, double *out);
/* Schedule-free optimizers step where gradients are taken; what is to be evaluated and used is the average of the way. on != 0: the weights
 * become the averages, until 0 brings them back, without which steps are errors (STATE); further times are no change. A saved model
 * stays as it is then. Errors: STATE (it does not train), UNSUPPORTED (its optimizer keeps no averages). */
PERILUNE_API perilune_status perilune_model_average(perilune_model *m, int32_t on);
/* Random numbers of m's runs, such as dropout's, from here on: those that T.manual_seed(seed) gives the graph in Lua, whichever threads call.
 * A model has its own, which begin by the clock until this is called, and moves on with each run. Errors: ARG (NULL). */
PERILUNE_API perilune_status perilune_model_seed(perilune_model *m, uint64_t seed);
/* Weight i, from 0, of perilune_model_weight_count: name is its key in the safetensors file. Data are the model's, on the CPU,
 * and change with perilune_model_step. Errors: ARG, UNSUPPORTED (on a GPU). */
PERILUNE_API int32_t perilune_model_weight_count(const perilune_model *m);
PERILUNE_API perilune_status perilune_model_weight(const perilune_model *m, int32_t i, perilune_tensor_info *out, const void **data);

/* Writes PATH and PATH.safetensors: the model with its weights as they are now and the optimizers' newest numbers and count of steps, to
 * be loaded again, by perilune_model_load or T.load_graph, and trained on; in Lua step:graph():load_state(path) gives all of it to the function
 * that the graph was saved of, and to its optimizers. Both files are replaced, or neither; PATH may be where the model
 * came from. Waits for a running step. Errors: IO, OOM. */
PERILUNE_API perilune_status perilune_model_save(perilune_model *m, const char *path);

/* ---- the process --------------------------------------------------------------------------------------------------------- */

/* on != 0: running kernels stop with PERILUNE_ERR_INTERRUPT, in all threads, until it is called with 0. May be called by a
 * signal handler. */
PERILUNE_API void perilune_stop(int32_t on);

#ifdef __cplusplus
}
#endif

#endif
