-- SPDX-License-Identifier: MIT
-- The map: who has read CONTRIBUTING.md alone finds the file that answers a question by its name, at the first guess.
-- The words of all paths are compared with those of the question (and with what "Words and names" in CONTRIBUTING.md
-- makes of them). The file that has most of them, and fewest others, must be the one that answers, and must hold the
-- text that settles it. Where that fails after a file was added or renamed, its name is wrong.

local root = os.getenv "PERILUNE_ROOT" or "."

-- question → { file, a pattern of its text }
local questions = {
  -- ops: their gradients, and where they are computed
  ["where is the gradient of max pooling"] = { "engine/ops/nn/pool.c", "max_bwd_grad" },
  ["where is the gradient of softmax"] = { "engine/ops/nn/softmax.c", "softmax_grad%(" },
  ["where is the gradient of cross entropy"] = { "engine/ops/nn/cross_entropy.c", "PlStatus cross_entropy_grad" },
  ["where is the shape rule of a convolution"] = { "engine/ops/nn/conv.c", "conv_infer%(" },
  ["where is softmax computed on the CPU"] = { "kernels/cpu/norm/softmax.c", "PlStatus plk_cpu_softmax%(" },
  ["where is the loop of softmax for a processor level"] = { "kernels/cpu/isa/norm/softmax.c", "softmax" },
  ["where is softmax computed on a GPU"] = { "kernels/cuda/norm/softmax.cu", "PlStatus softmax%(" },
  ["where is the CTC loss computed on the CPU"] = { "kernels/cpu/loss/ctc.c", "PlStatus plk_cpu_ctc_loss%(" },
  ["where is a convolution computed by Winograd's method"] = { "kernels/cpu/conv/conv_winograd.c", "plk_winograd" },
  ["where is scatter computed on a GPU"] = { "kernels/cuda/index/scatter.cu", "__global__ void scatter_lines" },
  ["where is the LSTM cell computed on a GPU"] = { "kernels/cuda/recurrent/lstm_cell.cu", "lstm_cell" },
  ["where is the singular value decomposition computed"] = { "kernels/cpu/linalg/linalg_svd.c", "svd_run" },
  ["where is the generator Philox"] = { "kernels/philox.h", "void plk_philox%(" },
  ["where does the CPU's team of threads share a loop"] = { "kernels/cpu/team.c", "void plk_team_run%(" },
  -- calls, tensors, memory
  ["where does autocast convert the inputs of a call"] = { "engine/call/autocast.c", "PL_CAST_WIDEST" },
  ["where is the memory of a tensor allocated"] = { "engine/tensor/alloc.c", "PlStatus pl_block_alloc%(" },
  ["where is ONNX's resize made of ops"] = { "lua/perilune/onnx/operators/resize.lua", "op%(\"Resize\"" },
  ["where is a tensor printed"] = { "lua/perilune/tensor/print.lua", "set_printoptions" },
  ["where is the binding of a GPU's streams"] = { "bindings/device/streams.c", "l_" },
  -- gradients
  ["where is the walk of backward"] = { "engine/grad/backward_walk.c", "pl_walk" },
  ["where do gradients accumulate"] = { "engine/grad/accumulate.c", "pl_gradient_accumulate" },
  ["where is a call recorded for backward"] = { "engine/grad/record.c", "PlStatus pl_record%(" },
  ["where is a write in place checked against gradients"] = { "engine/grad/inplace.c", "PlStatus pl_inplace_check%(" },
  ["where does backward run a checkpoint again"] = { "engine/grad/checkpoint.c", "pl_checkpoint_begin" },
  ["where does the binding of a custom rule run backward"] = { "bindings/autograd/custom_backward.c", "l_" },
  ["where is the rule of vmap for a matrix product"] = { "engine/vmap/rules_matmul_conv.c", "void pl_batch_matmul%(" },
  ["where is memory evicted that is above a limit"] = { "engine/remat/evict.c", "void remat_evict%(" },
  -- graphs and T.jit
  ["where does T.jit trace a Lua function"] = { "lua/perilune/jit/trace.lua", "the traced function changes" },
  ["where does Lua note the guards of a jitted function"] = { "lua/perilune/jit/guards.lua", "guard" },
  ["where does a binding check the guards of a jitted function"] = { "bindings/jit/guards.c", "guard" },
  ["where is a step captured on a GPU"] = { "engine/graph/run/device_capture.c", "captur" },
  ["where are the nodes of a graph fused"] = { "engine/graph/fuse/fuse.c", "bool pl_fuse_from%(" },
  ["where is the memory of a graph planned"] = { "engine/graph/plan/memory.c", "PlStatus pl_plan_memory%(" },
  ["where is it chosen what a graph recomputes"] = { "engine/graph/recompute/policy.c",
    "PlStatus pl_recompute_choose%(" },
  ["where are common subexpressions of a graph merged"] = { "engine/graph/passes/cse.c", "PlStatus pl_pass_cse%(" },
  -- models without Lua
  ["which file of deploy has the session"] = { "engine/deploy/session.c", "perilune_session_run%(" },
  ["where is a saved graph read for deployment"] = { "engine/deploy/saved_graph.c", "pl_saved_graph_read%(" },
  ["where are the nodes of a saved graph read"] = { "engine/deploy/saved_graph_nodes.c", "pl_reader_node%(" },
  -- files and text
  ["where is a safetensors header parsed"] = { "engine/io/safetensors_header.c", "PlStatus pl_header_parse%(" },
  ["where is an opcode of a pickle decoded"] = { "engine/io/pickle.c", "PlStatus pl_pickle_next%(" },
  ["where is the table of ggml's block formats"] = { "kernels/cpu/blocks/formats.c", "plk_block_format%(" },
  ["where does the writer of GGUF files put a tensor"] = { "engine/io/gguf/gguf_write.c", "PlStatus pl_gguf_save%(" },
  ["where is a PNG picture read"] = { "engine/io/png_read.c", "PlStatus pl_image_png_decode%(" },
  ["where does a unigram tokenizer find tokens"] = { "engine/text/unigram.c", "viterbi" },
  ["where is a tokenizer trained by byte pairs"] = { "engine/text/bpe_train.c", "PlStatus pl_trainer_run%(" },
  -- Lua
  ["where is the layer nn.Linear"] = { "lua/perilune/nn/linear.lua", "function Linear:init%(" },
  ["where does the optimizer Adam step"] = { "lua/perilune/optim/adam.lua", "AdamW = define" },
  ["where is a learning rate schedule"] = { "lua/perilune/optim/lr_scheduler.lua", "StepLR" },
  ["where does a worker of DataLoader run Lua code"] = { "lua/perilune/data/worker.lua", "setup%.collate" },
  ["where is the model GPT2"] = { "lua/perilune/models/gpt2.lua", "GPT2LMHeadModel" },
  ["where do models generate"] = { "lua/perilune/models/generate.lua", "function M.run%(" },
  ["where is einsum"] = { "lua/perilune/math/einsum.lua", "einsum: " },
  ["where does the prompt complete a name"] = { "lua/perilune/repl/complete.lua", "function Completer.new%(" },
  ["where does Jupyter's service talk to front ends"] = { "lua/perilune/jupyter/service.lua", "Service:turn" },
  ["where are a notebook's cells run for Jupyter"] = { "lua/perilune/jupyter/cells.lua", "Cells:execute" },
  ["where is the binding of ZeroMQ's sockets"] = { "bindings/zeromq/socket.c", "zmq_socket" },
  ["where is Ctrl-C noticed"] = { "bindings/core/interrupt.c", "signal" },
  ["where does a binding raise an error at the script's line"] = { "bindings/core/error.c", "int l_where%(" },
  ["where does the binding of HTTP refuse a bad exchange"] = { "bindings/http/exchange.c", "refuse%(" },
  ["where does the collector find cycles"] = { "bindings/collector/cycles.c", "int l_cycles_cut%(" },
  ["where is NCCL opened for GPUs"] = { "kernels/cuda/libs/nccl.c", "ncclRedOp_t" },
}

local function read(path)
  local f = assert(io.open(root .. "/" .. path))
  local text = f:read "a"
  f:close()
  return text
end

local function words_of(text)
  local list = {}
  for word in text:lower():gsub("ctrl%-c", "ctrlc"):gmatch "[%w]+" do list[#list + 1] = word end
  return list
end

-- The same word but for its ending: pool, pooling; conv, convolution.
local function same(a, b)
  if #a > #b then a, b = b, a end
  return a == b or #a >= 3 and b:sub(1, #a) == a
end

local said_by_all = {}
local common = "where is are the a an of on in to for at its it s by from what does get do made find that above"
for _, word in ipairs(words_of(common)) do said_by_all[word] = true end

-- The table below "Words and names": word of a question → words of paths.
local function synonyms()
  local text = read("CONTRIBUTING.md"):match "\n### Words and names\n(.-)\n##"
  local list = {}
  for left, right in assert(text):gmatch "\n| ([^|\n]-) | ([^|\n]-) |" do
    local names = {}
    for name in right:gmatch "`([%w_]+)`" do names[#names + 1] = name end
    if #names > 0 then
      for _, word in ipairs(words_of(left)) do list[#list + 1] = { word, names } end
    end
  end
  return list
end

-- path → { words of the path }, extension left out
local function paths()
  local list = {}
  local pipe = assert(io.popen(("cd '%s' && find kernels engine bindings lua -type f | sort"):format(root)))
  for path in pipe:lines() do
    list[#list + 1] = { path = path, words = words_of((path:gsub("^lua/perilune", "lua"):gsub("%.%w+$", ""))) }
  end
  pipe:close()
  return list
end

-- How many words of the question the path has, less a little for each that it has besides.
local function score(entry, question)
  local used, n = {}, 0
  for _, names in ipairs(question) do
    local hit = false
    for i, word in ipairs(entry.words) do
      for _, name in ipairs(names) do
        if same(word, name) then hit, used[i] = true, true end
      end
    end
    if hit then n = n + 1 end
  end
  for i, word in ipairs(entry.words) do
    -- isa holds inner loops, which only those look for who ask for loops
    if not used[i] then n = n - (word == "isa" and 0.2 or 0.1) end
  end
  return n
end

describe("the map: guessed by name alone,", function()
  local all, more = paths(), synonyms()
  local function meant(question)
    local list = {}
    for _, word in ipairs(words_of(question)) do
      if not said_by_all[word] then
        local names = { word }
        for _, row in ipairs(more) do
          if same(row[1], word) then table.move(row[2], 1, #row[2], #names + 1, names) end
        end
        list[#list + 1] = names
      end
    end
    return list
  end

  for question, answer in pairs(questions) do
    it(question, function()
      local file, pattern = answer[1], answer[2]
      assert.truthy(read(file):find(pattern), ("%s does not hold '%s'"):format(file, pattern))
      local wanted, ranked = meant(question), {}
      for _, entry in ipairs(all) do ranked[#ranked + 1] = { entry.path, score(entry, wanted) } end
      table.sort(ranked, function(a, b)
        if a[2] ~= b[2] then return a[2] > b[2] end
        return a[1] < b[1]
      end)
      local first = {}
      for _, row in ipairs(ranked) do
        if row[2] < ranked[1][2] then break end
        first[#first + 1] = row[1]
      end
      if not file:find "%.h$" then -- who looks for code does not open a header
        for i = #first, 1, -1 do
          if first[i]:find "%.h$" then table.remove(first, i) end
        end
      end
      assert.equal(file, table.concat(first, ", "))
    end)
  end

  it("CONTRIBUTING has a line for every folder", function()
    local rooms, missing = read("CONTRIBUTING.md"):match "\n### Rooms\n(.-)\n### ", {}
    local find = "cd '%s' && find engine kernels bindings lua/perilune spec -type f | sed 's|/[^/]*$||' | sort -u"
    local pipe = assert(io.popen(find:format(root)))
    for folder in pipe:lines() do
      local below = folder:find "^spec/cuda/" or folder:find "^spec/ops/" or folder:find "^spec/support/"
      if folder ~= "spec" and not below and not rooms:find("`" .. folder .. "`", 1, true) then
        missing[#missing + 1] = folder
      end
    end
    pipe:close()
    assert.same({}, missing)
  end)

  it("CONTRIBUTING names files of a folder that are there", function()
    local rooms, missing = read("CONTRIBUTING.md"):match "\n### Rooms\n(.-)\n### ", {}
    for folders, text in rooms:gmatch "\n| ([^|\n]+) | ([^|\n]+) |" do
      for name in text:gmatch "`([%w_]+%.%l+)`" do
        local there = name:find "%.so$" ~= nil -- those are built
        for folder in folders:gmatch "`([^`]+)`" do
          local f = io.open(("%s/%s/%s"):format(root, folder, name))
          if f then f:close() end
          there = there or f ~= nil
        end
        if not there then missing[#missing + 1] = folders .. ": " .. name end
      end
    end
    assert.same({}, missing)
  end)

  it("has no file that a run left behind", function()
    local pipe = assert(io.popen(("cd '%s' && git ls-files 2> /dev/null"):format(root)))
    local kept, odd = {}, {}
    for ending in ("bash busted c clang-format clang-tidy cmake cpp cu def fish gitignore h in json luacheckrc lua "
      .. "map md py rockspec sh supp svg 1"):gmatch "%S+" do
      kept[ending] = true
    end
    for path in pipe:lines() do
      local ending = path:match "[^/]*$":match "%.([^.]+)$"
      local data = path:find "^spec/" or path:find "^bench/results/"
      local fine = not ending or kept[ending] or data or path == "CMakeLists.txt"
      if not fine then odd[#odd + 1] = path end
    end
    pipe:close()
    assert.same({}, odd)
  end)

  it("has questions enough, and words that are used", function()
    local n = 0
    for _ in pairs(questions) do n = n + 1 end
    assert.is_true(n >= 30 and #more > 0)
  end)
end)
