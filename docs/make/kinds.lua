-- SPDX-License-Identifier: MIT
-- For the definitions for editors: the kinds of parameters and options that signatures and declarations do not tell.
-- → kinds by the name of a parameter; kinds by function, then by name

-- What names of parameters stand for wherever nothing else is said of them; spec/docs/types_spec.lua runs all examples
-- against what comes out.
local NAMED = {}
local function named(kind, names) for name in names:gmatch "%S+" do NAMED[name] = kind end end
named("perilune.Tensor|number|table", "x y A B a b q v r t input target pred logits weight bias src tensor other "
  .. "vec M C N p mat1 mat2 query key index indices mask U S")
named("function|perilune.Jit", "f fn loss_fn closure")
named("fun(x: perilune.Argument): any, any", "opfunc")
named("any", "value") -- these take any
named("string", "name mode text word")
named("string|table", "path dir")
named("integer|table", "dim n k i d classes num_classes batch_size epochs steps")
named("integer|integer[]|table", "sizes dims shape size window")
named("integer|integer[]|string|table", "stride padding dilation kernel_size output_padding output_size groups")
named("perilune.Tensor[]|table", "params list tensors grads")
named("optim.Optimizer", "opt optimizer")
named("nn.Module", "net module model")
named("perilune.dtype|table", "dtype")
named("string|table", "device reduction nonlinearity")
named("boolean|table", "on upper full_matrices keepdim inplace training non_blocking copy")
named("number|perilune.Tensor|table", "lo hi std mean rtol atol scale momentum gain eps alpha beta lr gamma")
named("table|perilune.Tensor|integer", "dataset")
named("boolean|number|table", "left")
-- And where a name means something else:
local MEANT = { ["T.load"] = { unsupported = "string" }, ["optim.LBFGS"] = { line_search_fn = "string|boolean" },
  ["T.cli"] = { about = "string", rest = "string" },
  ["nn.lora"] = { target = "string|string[]|function", modules_to_save = "string|string[]" },
  ["nn.set_adapter"] = { which = "string|string[]|boolean" },
  ["T.autocast"] = { options = "T.autocast.Options|function" },
  ["Tensor:to"] = { word = "perilune.dtype|perilune.Tensor" },
  ["T.memory_limit"] = { word = "perilune.int|string" },
  ["T.custom"] = { forward = "fun(ctx: perilune.Context, ...: perilune.Argument): any, any, any, any, any",
    backward = "fun(ctx: perilune.Context, ...: perilune.Argument): any, any, any, any, any",
    jvp = "fun(ctx: perilune.Context, ...: perilune.Argument): any, any, any, any, any",
    name = "string", always = "boolean", state = "any" },
  ["T.data.chat_template"] = { source = "string" },
  ["T.distributions.register_kl"] = { p = "function|table", q = "function|table",
    P = "function|table", Q = "function|table" },
  ["nn.utils.clip_grads_with_norm_"] = { total_norm = "number|perilune.Tensor" },
  ["nn.utils.parametrize.is_parametrized"] = { tensor_name = "string" },
  ["nn.utils.parametrize.register_parametrization"] = { parametrization = "nn.Module" },
  ["nn.class"] = { parent = "nn.Module" }, ["nn.utils.stack_module_state"] = { modules = "nn.Module[]" },

  ["T.distributions.Independent"] = { base = "T.distributions.Distribution" },
  ["T.distributions.TransformedDistribution"] = { base = "T.distributions.Distribution" },
  ["nn.F.scaled_dot_product_attention"] = { q = "perilune.Tensor", k = "perilune.Tensor", v = "perilune.Tensor" },
  ["T.distributed.all_gather_object"] = { value = "any", list = "table" },
  ["T.distributed.gather_object"] = { value = "any", list = "table" }, ["T.models.generate"] = { opts = "table" },
  ["T.tensor"] = { number = "perilune.value|perilune.Tensor|table" },
  ["T.as_tensor"] = { value = "perilune.value|perilune.Tensor|table" },
  ["T.asarray"] = { value = "perilune.value|perilune.Tensor|table" },
  ["T.cuda.stream"] = { s = "perilune.Stream" },
  ["T.promote_types"] = { a = "perilune.dtype", b = "perilune.dtype" },
  ["T.fit"] = { metrics = "string|table", scheduler = "optim.lr_scheduler.LRScheduler|table",
    checkpoint = "string|table", jit = "boolean|table" },
  ["T.bar"] = { loop = "function|table|perilune.int", file = "userdata|table" }, ["T.imshow"] = { file = "string" },
  ["Tensor:imshow"] = { file = "string" }, ["Tensor.imshow"] = { file = "string" },
  ["T.models.save"] = { type = "string|function" }, ["T.save_gguf"] = { type = "string" },
  ["T.save_graph"] = { graph_or_function = "perilune.Graph|function|nn.Module" },
  ["T.set_rng_state"] = { string = "string|table" }, ["T.scalar_tensor"] = { number = "number|boolean" },
  ["nn.init.calculate_gain"] = { param = "number" }, ["nn.init.constant_"] = { value = "number" },
  ["nn.utils.clip_grad_value_"] = { value = "number" }, ["T.data.transforms.pad"] = { value = "number|number[]" },
  ["T.data.transforms.random_erasing"] = { value = "number|string|table" },
  ["T.data.transforms.crop"] = { h = "integer|table" },
  ["T.data.Dataset"] = { self = "table", len = "integer|function" },

  ["T.data.IterableDataset"] = { self = "table", len = "integer|function" },
  ["T.fill_diagonal_"] = { value = "number" },
  ["Tensor:fill_diagonal_"] = { value = "number" }, ["optim.compat.sgd"] = { learningRates = "perilune.Tensor" },
  ["T.plot.image"] = { options = "table" }, ["T.plot.scatter"] = { options = "table" },
  ["T.plot.spark"] = { options = "table" }, ["T.broadcast_shapes"] = { options = "integer[]" },
  ["T.save"] = { options = "table" }, ["T.compile"] = { options = "table" },
  ["T.full_like"] = { value = "number|boolean|perilune.Tensor|table" }, ["Tensor:full_like"] = { value =
    "number|boolean|perilune.Tensor|table" }, ["Tensor.full_like"] = { value = "number|boolean|perilune.Tensor|table" },
  ["T.new_full"] = { value = "number|boolean|perilune.Tensor|table" }, ["Tensor:new_full"] = { value =
    "number|boolean|perilune.Tensor|table" }, ["Tensor.new_full"] = { value = "number|boolean|perilune.Tensor|table" },
  ["T.distributed.all_gather"] = { options = "table" },
  ["T.distributed.all_gather_into_tensor"] = { options = "table" },
  ["T.distributed.all_to_all"] = { options = "table", out = "perilune.list", list = "perilune.list" },
  ["T.distributed.broadcast"] = { options = "table" },
  ["T.distributed.gather"] = { options = "table" },
  ["T.distributed.scatter"] = { options = "table" },
  ["T.full"] = { value = "number|boolean|perilune.Tensor|table" },
  ["T.vmap"] = { in_dims = "integer|boolean|table", out_dims = "integer|boolean|table" } }
-- What takes a function of tensors: that is what its arguments are, unless it says otherwise.
for name in ("jit compile grad value_and_grad jacobian hessian hvp jvp vjp vmap linearize checkpoint gradcheck"
  .. " gradgradcheck make_graphed"):gmatch "%S+" do
  local key = "T." .. name
  MEANT[key] = MEANT[key] or {}
  MEANT[key].f = "(fun(...: perilune.Argument): any)|nn.Module|table"
end
named("table", "state sd map")
named("string|function|nn.Module", "activation")
named("0|1|table", "index_base")
named("T.Generator", "generator")
named("boolean|table", "requires_grad")
named("integer|table", "ignore_index rank bins base seed dst")
named("perilune.Tensor|table", "out lengths boxes dy")
named("integer|integer[]|table", "rows cols")
named("number|integer[]|number[]|table", "scale_factor spacing output_ratio")
named("number|table", "threshold max_norm maxnorm lambd rate swa_lr maxEval")
named("number|string|table", "ord max_bytes")
named("string|table", "title map_location")
named("perilune.Tensor|number|table", "x1 x2 ys xs values source scores w weights vector pos_weight min max top "
  .. "min_val max_val low gradient inputs s P permutation wave")
named("T.distributed.Group|table", "group")
named("string|string[]", "names")
named("integer", "every gpu step accumulate")
named("integer|string", "bytes")
named("integer[]|perilune.Tensor|integer", "ids")
named("integer[]|table", "ranks")
named("number", "tol negative_slope label_smoothing sparsity min_lr total_norm")
named("number|number[]", "max_lr")
named("boolean", "log_target unitriangular async_op")
named("optim.lr_scheduler.LRScheduler[]", "schedulers")
named("function|function[]", "lr_lambda")
named("nn.Module", "layer linear bn")
named("perilune.PackedSequence", "packed")
named("string|integer|number", "norm")
named("string", "approximate memory_format UPLO wavelet")
named("function|table", "loop loader sampler transforms")

-- Options that one function or a few have.
named("boolean|table", "quiet rest antialias enable_timing check fallback unsupported drop_last "
  .. "retain_graph create_graph allow_unused")
named("integer|table", "total width priority chunk_size segments max_traces popsize num_labels min_length top_k "
  .. "no_repeat_ngram_size channels total_length anneal_epochs")
named("number|table", "temperature top_p min_p typical_p epsilon_cutoff eta_cutoff repetition_penalty timeout delta "
  .. "growth_rate dampening decay")
named("number|number[]|table", "brightness contrast saturation hue ratio step_sizes base_lr range xlim high")
named("string|table", "encoding pattern comment quote architecture format anneal_strategy about")
named("string[]|table", "input_names output_names files special missing columns args")
named("table", "types dynamic kinds metadata bad_words suppress begin_suppress lineSearchOptions tables")
named("integer[]|table", "output_split_sizes input_split_sizes")
named("function|table", "transform get len iter pack unpack forward lineSearch g pl")
named("integer|integer[]|table", "eos")
named("string|boolean|table", "mirror policy")
named("number|string|table", "budget")
named("perilune.dtype", "from to")
named("integer|number", "level")
named("perilune.Tensor|perilune.Tensor[]|table", "grad_outputs m")
named("table", "scaler")
named("perilune.Tokenizer|table", "tokenizer")
named("T.distributed.Group", "process_group")
named("function|nn.Module|table", "loss custom_encoder custom_decoder observer")
named("nn.Module", "conv")
named("string|function|table", "skip batch_sampler")
named("T.distributions.Distribution", "mixture_distribution component_distribution")
named("table|function|string", "save none")
named("table|function", "train valid calibration callbacks")

return NAMED, MEANT
