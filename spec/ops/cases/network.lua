-- SPDX-License-Identifier: MIT
-- Softmax, norms, losses, products, convolution, pooling. Rows of spec/ops/cases.lua; their fields:
-- spec/ops/rows.lua.

local T = require "perilune"
local rows = require "spec.ops.rows"
local oracle = require "spec.support.oracle"

local golden, rand, distinct, ints = rows.golden, rows.rand, rows.distinct, rows.ints
local exp, log, abs = math.exp, math.log, math.abs

local R = {}

local function softplus(x) return log(1 + exp(x)) end

-- ---- rows: softmax, norms, losses ---------------------------------------------------------------

R.softmax = { args = function(g) return rand(g, { 3, 4 }), { dim = -1 } end,
  more = { function(g) return rand(g, { 3, 4, 2 }), { dim = 1 } end },
  ref = function(x, o) return oracle.softmax(x, o.dim) end }
R.log_softmax = { args = function(g) return rand(g, { 3, 4 }), { dim = -1 } end,
  more = { function(g) return rand(g, { 3, 4, 2 }), { dim = 2 } end },
  ref = function(x, o) return oracle.log_softmax(x, o.dim) end }
R.layer_norm = {
  args = function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), rand(g, { 4 }), { normalized_shape = 4 } end,
  more = { function(g) return rand(g, { 2, 3, 4 }), { normalized_shape = { 4 } } end },
  ref = function(x, w, b)
    if not w.data then w, b = nil, nil end
    return oracle.layer_norm(x, w, b)
  end,
}
R.rms_norm = golden(function(g) return rand(g, { 3, 4 }), rand(g, { 4 }), { normalized_shape = 4 } end)
R.group_norm = golden(function(g)
  return rand(g, { 2, 4, 3 }), rand(g, { 4 }), rand(g, { 4 }), { num_groups = 2 }
end)
R.batch_norm = golden(function(g)
  return rand(g, { 3, 2, 2 }), nil, nil, rand(g, { 2 }), rand(g, { 2 }), { training = true }
end)
R.running_update = { args = function(g) return rand(g, { 4 }), rand(g, { 4 }) end,
  ref = oracle.pointwise(function(r, s) return r + 0.1 * (s - r) end) }
R.cross_entropy = {
  args = function(g) return rand(g, { 3, 5 }), ints(g, { 3 }, 1, 5) end,
  ref = oracle.cross_entropy,
}
R.cross_entropy_linear = {
  args = function(g) return rand(g, { 3, 2 }), rand(g, { 5, 2 }), ints(g, { 3 }, 1, 5), { chunk = 2 } end,
  ref = function(x, w, t)
    local s = 0.0
    for i, k in ipairs(t.data) do
      local y, sum = {}, 0.0
      for c = 1, 5 do
        y[c] = x.data[2 * i - 1] * w.data[2 * c - 1] + x.data[2 * i] * w.data[2 * c]
        sum = sum + math.exp(y[c])
      end
      s = s + math.log(sum) - y[k]
    end
    return { shape = {}, data = { s } }
  end,
}
R.nll_loss = {
  args = function(g) return rand(g, { 3, 5 }, -2, -0.1), ints(g, { 3 }, 1, 5) end,
  ref = function(x, t)
    local s = 0.0
    for i, k in ipairs(t.data) do s = s - x.data[(i - 1) * 5 + k] end
    return { shape = {}, data = { s / 3 } }
  end,
}
local function mean_of(f)
  return function(a, b)
    local y = oracle.pointwise(f)(a, b)
    return { shape = {}, data = { oracle.sum_list(y.data) / #y.data } }
  end
end
local function pair(lo, hi)
  return function(g) return rand(g, { 3, 4 }, lo, hi), rand(g, { 3, 4 }, lo, hi) end
end
R.cross_entropy_prob = golden(function(g) return rand(g, { 3, 4 }), rand(g, { 3, 4 }, 0.1, 0.9) end,
  { golden = "cross_entropy" })
R.mse_loss = { args = pair(), ref = mean_of(function(a, b) return (a - b) ^ 2 end) }
R.l1_loss = { args = pair(), ref = mean_of(function(a, b) return abs(a - b) end) }
R.smooth_l1_loss = { args = pair(-0.4, 0.4), ref = mean_of(function(a, b) return (a - b) ^ 2 / 2 end) }
R.huber_loss = { args = pair(-0.4, 0.4), ref = mean_of(function(a, b) return (a - b) ^ 2 / 2 end) }
R.binary_cross_entropy = { args = pair(0.1, 0.9),
  ref = mean_of(function(p, t) return -(t * log(p) + (1 - t) * log(1 - p)) end) }
R.binary_cross_entropy_with_logits = { args = pair(0.1, 0.9),
  ref = mean_of(function(x, t) return softplus(x) - t * x end) }
R.kl_div = { args = pair(0.1, 0.9), ref = mean_of(function(x, t) return t * (log(t) - x) end) }

-- ---- products, convolution, pooling -------------------------------------------------------------

R.matmul = {
  args = function(g) return rand(g, { 3, 4 }), rand(g, { 4, 2 }) end,
  more = { function(g) return rand(g, { 2, 1, 3, 4 }), rand(g, { 3, 4, 2 }) end },
  ref = oracle.matmul,
}
R.mm = { args = function(g) return rand(g, { 3, 4 }), rand(g, { 4, 2 }) end, ref = oracle.matmul }
R.bmm = { args = function(g) return rand(g, { 2, 3, 4 }), rand(g, { 2, 4, 2 }) end, ref = oracle.matmul }
R.int_mm = { args = function()
  return T.tensor({ { 1, -2, 127 }, { -128, 5, 6 } }, { dtype = "i8" }),
    T.tensor({ { 3, -128 }, { 4, 7 }, { -128, 127 } }, { dtype = "i8" })
end, ref = oracle.matmul }

local function int8_image(g)
  local w = T.tensor({ { { { 3, -128 } } }, { { { 127, 5 } } } }, { dtype = "i8" })
  local zero = T.tensor({ 7 }, { dtype = "i32" })
  return rand(g, { 2, 2, 3, 4 }, -2, 2):float(), w, T.tensor { 0.5, 2 }, T.tensor { 0.02 }, zero
end
R.int8_conv2d = {
  args = function(g)
    local x, w, scale, x_scale, zero = int8_image(g)
    return x, w, scale, x_scale, zero, { groups = 2 }
  end,
  more = { function(g)
    local x, w, scale, x_scale, zero = int8_image(g)
    return x, w, scale, x_scale, zero, T.tensor { 1, -1 }, { groups = 2, padding = 1, stride = 2, relu = true }
  end },
  ref = function(x, w, scale, x_scale, zero, bias, o)
    if o == nil then bias, o = nil, bias end
    local s, z = x_scale.data[1], zero.data[1]
    local q = oracle.pointwise(function(v) return math.max(-128, math.min(127, math.floor(v / s + 0.5) + z)) - z end)(x)
    local y = oracle.conv2d(q, w, nil, o)
    local outs, places = y.shape[2], y.shape[3] * y.shape[4]
    for i, v in ipairs(y.data) do
      local channel = (i - 1) // places % outs + 1
      v = v * s * scale.data[channel] + (bias and bias.data[channel] or 0)
      y.data[i] = o.relu and math.max(v, 0) or v
    end
    return y
  end,
  tol = 1e-6,
}

-- Rows of Q8_0: 32 whole numbers of 8 bits behind their scale, a half.
local function blocks_of(g, n, k) return T.quantize_blocks(rand(g, { n, k }), { format = "Q8_0" }) end
local function dequantized(w)
  local n, bytes, data = w.shape[1], w.shape[2], {}
  for i = 0, n * bytes - 1, 34 do
    local bits = w.data[i + 1] | w.data[i + 2] << 8
    local scale = (1024 + (bits & 1023)) * 2.0 ^ ((bits >> 10) - 25)
    for j = 3, 34 do
      local q = w.data[i + j]
      data[#data + 1] = scale * (q < 128 and q or q - 256)
    end
  end
  return { shape = { n, bytes // 34 * 32 }, data = data }
end
local function transposed(a)
  return oracle.pick(a, { a.shape[2], a.shape[1] }, function(i) return { i[2], i[1] } end)
end
R.quantized_linear = {
  args = function(g)
    return rand(g, { 3, 64 }), blocks_of(g, 2, 64), rand(g, { 2 }), { format = "Q8_0", activations = "float" }
  end,
  more = { function(g)
    return rand(g, { 1, 32 }), blocks_of(g, 3, 32), { format = "Q8_0", activations = "float" }
  end },
  ref = function(x, w, b)
    local y = oracle.matmul(x, transposed(dequantized(w)))
    for i = 1, b.data and #y.data or 0 do y.data[i] = y.data[i] + b.data[(i - 1) % #b.data + 1] end
    return y
  end,
}
R.quantized_matmul = { args = function(g) return rand(g, { 3, 2 }), blocks_of(g, 2, 64), { format = "Q8_0" } end,
  ref = function(x, w) return oracle.matmul(x, dequantized(w)) end }
R.dequantize_blocks = { args = function(g) return blocks_of(g, 2, 64), { format = "Q8_0" } end, ref = dequantized }
R.quantize_blocks = { args = function(g) return rand(g, { 2, 32 }), { format = "Q8_0" } end,
  why = "spec/kernels/blocks_spec.lua" }
R.mv = golden(function(g) return rand(g, { 3, 4 }), rand(g, { 4 }) end)
R.dot = golden(function(g) return rand(g, { 4 }), rand(g, { 4 }) end)
R.outer = golden(function(g) return rand(g, { 3 }), rand(g, { 4 }) end)
R.inner = golden(function(g) return rand(g, { 2, 4 }), rand(g, { 3, 4 }) end)
R.kron = golden(function(g) return rand(g, { 2, 3 }), rand(g, { 2, 2 }) end)
R.bilinear = golden(function(g)
  return rand(g, { 2, 3 }), rand(g, { 2, 4 }), rand(g, { 2, 3, 4 }), rand(g, { 2 })
end)
R.addmm = golden(function(g) return rand(g, { 3, 2 }), rand(g, { 3, 4 }), rand(g, { 4, 2 }) end, {
  more = { function(g)
    return rand(g, { 2 }), rand(g, { 3, 4 }), rand(g, { 4, 2 }), { beta = 0.5, alpha = 2 }
  end },
})
R.baddbmm = golden(function(g) return rand(g, { 2, 3, 2 }), rand(g, { 2, 3, 4 }), rand(g, { 2, 4, 2 }) end)
R.addmv = golden(function(g) return rand(g, { 3 }), rand(g, { 3, 4 }), rand(g, { 4 }) end)
R.addr = golden(function(g) return rand(g, { 3, 2 }), rand(g, { 3 }), rand(g, { 2 }) end)
R.addbmm = golden(function(g) return rand(g, { 3, 2 }), rand(g, { 2, 3, 4 }), rand(g, { 2, 4, 2 }) end)
R.linear = golden(function(g) return rand(g, { 3, 4 }), rand(g, { 2, 4 }), rand(g, { 2 }) end, {
  more = { function(g) return rand(g, { 2, 3, 4 }), rand(g, { 2, 4 }) end },
})
R.conv2d = {
  args = function(g) return rand(g, { 2, 2, 4, 4 }), rand(g, { 3, 2, 3, 3 }), rand(g, { 3 }) end,
  more = {
    function(g)
      return rand(g, { 1, 4, 5, 5 }), rand(g, { 4, 2, 2, 2 }), rand(g, { 4 }),
        { stride = 2, padding = 1, groups = 2 }
    end,
  },
  ref = function(x, w, b, o) return oracle.conv2d(x, w, b, o) end,
}
R.max_pool2d = {
  args = function(g) return distinct(g, { 1, 2, 4, 4 }), { kernel_size = 2 } end,
  more = {
    function(g) return distinct(g, { 1, 1, 5, 5 }), { kernel_size = 3, stride = 2, padding = 1 } end,
  },
  ref = function(x, o) return oracle.max_pool2d(x, o.kernel_size, o.stride, o.padding) end,
}
local size = { { 5 }, { 4, 4 }, { 3, 3, 4 } }
local function image(channels, nd) return { 1, channels, table.unpack(size[nd]) } end
for nd = 1, 3 do
  local k = { 2, 2, 2 }
  local kernel = table.move(k, 1, nd, 1, {})
  if nd ~= 2 then
    R["conv" .. nd .. "d"] = golden(function(g)
      return rand(g, image(2, nd)), rand(g, { 3, 2, table.unpack(kernel) }), rand(g, { 3 })
    end)
  end
  R["conv_transpose" .. nd .. "d"] = golden(function(g)
    return rand(g, image(2, nd)), rand(g, { 2, 3, table.unpack(kernel) }), rand(g, { 3 }), { stride = 2 }
  end)
  if nd ~= 2 then
    R["max_pool" .. nd .. "d"] = golden(function(g) return distinct(g, image(2, nd)), { kernel_size = 2 } end)
  end
  R["avg_pool" .. nd .. "d"] = golden(function(g) return rand(g, image(2, nd)), { kernel_size = 2 } end)
  local adaptive = "adaptive_%s_pool" .. nd .. "d"
  R[adaptive:format("max")] = golden(function(g) return distinct(g, image(2, nd)), { output_size = 2 } end)
  R[adaptive:format("avg")] = golden(function(g) return rand(g, image(2, nd)), { output_size = 2 } end)
end
-- Positions in n elements from the coordinates of a grid, what is outside moved in.
local function placed(t, n, align)
  return align and (t + 1) / 2 * (n - 1) or ((t + 1) * n - 1) / 2
end
local function moved(t, n, padding, align)
  if padding == "reflection" then
    local low, high = align and 0 or -0.5, align and n - 1 or n - 0.5
    if low == high then return 0 end
    while t < low or t > high do t = t < low and 2 * low - t or 2 * high - t end
  end
  return padding == "zeros" and t or math.max(0, math.min(n - 1, t))
end
-- { position, weight } of what is read along one dimension.
local function read_along(t, n, o)
  local padding, align, taps = o.padding_mode or "zeros", o.align_corners, {}
  t = placed(t, n, align)
  if o.mode ~= "bicubic" then t = moved(t, n, padding, align) end
  local low = math.floor(t)
  if o.mode == "nearest" then return { { math.floor(t + 0.5), 1 } } end
  if o.mode ~= "bicubic" then return { { low, low + 1 - t }, { low + 1, t - low } } end
  for k = -1, 2 do
    local d = abs(t - low - k)
    local w = d <= 1 and 1.25 * d ^ 3 - 2.25 * d ^ 2 + 1 or -0.75 * (d ^ 3 - 5 * d ^ 2 + 8 * d - 4)
    taps[#taps + 1] = { moved(low + k, n, padding, align), w }
  end
  return taps
end
local function sampled(x, grid, o)
  local nd, C, places = #x.shape - 2, x.shape[2], 1
  local sizes, at = { table.unpack(x.shape, 3) }, 0
  local out = { x.shape[1], C, table.unpack(grid.shape, 2, #grid.shape - 1) }
  local volume, y = 1, { shape = out, data = {} }
  for d = 1, nd do volume, places = volume * sizes[d], places * out[d + 2] end
  for n = 0, out[1] - 1 do
    for c = 0, C - 1 do
      for p = 0, places - 1 do
        local reads = { { 0, 1 } }
        for d = 1, nd do
          local more = {}
          for _, r in ipairs(reads) do
            for _, t in ipairs(read_along(grid.data[(n * places + p) * nd + nd + 1 - d], sizes[d], o)) do
              if r[1] and t[1] >= 0 and t[1] < sizes[d] then
                more[#more + 1] = { r[1] * sizes[d] + t[1], r[2] * t[2] }
              end
            end
          end
          reads = more
        end
        local sum = 0
        for _, r in ipairs(reads) do sum = sum + x.data[(n * C + c) * volume + math.tointeger(r[1]) + 1] * r[2] end
        at = at + 1
        y.data[at] = sum
      end
    end
  end
  return y
end
R.grid_sample = {
  args = function(g) return rand(g, { 2, 2, 3, 4 }), rand(g, { 2, 2, 3, 2 }, -1.4, 1.4), { mode = "bilinear" } end,
  more = {},
  ref = sampled,
}
for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
  for k, padding in ipairs { "zeros", "border", "reflection" } do
    local o = { mode = mode, padding_mode = padding, align_corners = k % 2 == 0 }
    local function picture(g) return rand(g, { 1, 5, 4, 3 }), rand(g, { 1, 4, 3, 2 }, -1.9, 1.9), o end
    local function volume(g) return rand(g, { 1, 3, 2, 3, 2 }), rand(g, { 1, 2, 2, 2, 3 }, -1.9, 1.9), o end
    table.insert(R.grid_sample.more, picture)
    if mode ~= "bicubic" then table.insert(R.grid_sample.more, volume) end
  end
end
R.attention = {
  args = function(g) return rand(g, { 2, 5, 3 }), rand(g, { 2, 4, 3 }), rand(g, { 2, 4, 2 }), { scale = 0.7 } end,
  more = {
    function(g)
      return rand(g, { 2, 5, 3 }), rand(g, { 2, 4, 3 }), rand(g, { 2, 4, 2 }), { scale = 0.7, is_causal = true }
    end,
    function(g)
      return rand(g, { 2, 2, 3, 3 }), rand(g, { 2, 2, 4, 3 }), rand(g, { 2, 2, 4, 2 }), rand(g, { 2, 1, 3, 4 }),
        { scale = 0.5 }
    end,
    function(g)
      return rand(g, { 1, 2, 3 }), rand(g, { 1, 4, 3 }), rand(g, { 1, 4, 2 }),
        T.tensor { { true, false, true, true }, { false, false, false, false } }, { scale = 0.5 }
    end,
  },
  golden = "scaled_dot_product_attention",
}
R.attention_dropout = {
  args = function(g)
    return rand(g, { 2, 5, 3 }), rand(g, { 2, 4, 3 }), rand(g, { 2, 4, 2 }), { scale = 0.7, dropout_p = 0.5 }
  end,
  why = "spec/nn/attention_spec.lua, with the shares that it kept",
}
R.lstm_seq = {
  args = function(g)
    return rand(g, { 4, 2, 12 }), rand(g, { 2, 3 }), rand(g, { 2, 3 }), rand(g, { 12, 3 })
  end,
  more = {
    function(g)
      return rand(g, { 3, 1, 8 }), rand(g, { 1, 2 }), rand(g, { 1, 2 }), rand(g, { 8, 2 }), { reverse = true }
    end,
    function(g) return rand(g, { 1, 1, 4 }), rand(g, { 1, 1 }), rand(g, { 1, 1 }), rand(g, { 4, 1 }) end,
  },
  why = "golden lstm, spec/nn/recurrent_spec.lua step by step",
}
R.lstm_layer = {
  args = function(g)
    return rand(g, { 4, 2, 5 }), rand(g, { 2, 3 }), rand(g, { 2, 3 }), rand(g, { 12, 5 }),
      rand(g, { 12, 3 }), rand(g, { 12 })
  end,
  more = {
    function(g)
      return rand(g, { 3, 1, 2 }), rand(g, { 1, 2 }), rand(g, { 1, 2 }), rand(g, { 8, 2 }), rand(g, { 8, 2 }),
        rand(g, { 8 }), { reverse = true }
    end,
  },
  why = "golden lstm, spec/nn/recurrent_spec.lua step by step",
}
R.lstm_gates = {
  args = function(g) return rand(g, { 2, 12 }), rand(g, { 2, 3 }) end,
  more = { function(g) return rand(g, { 1, 4 }), rand(g, { 1, 1 }) end },
  golden = "lstm_cell",
}
R.gru_seq = {
  args = function(g)
    return rand(g, { 4, 2, 9 }), rand(g, { 2, 3 }), rand(g, { 9, 3 }), rand(g, { 3 })
  end,
  more = {
    function(g)
      return rand(g, { 3, 1, 6 }), rand(g, { 1, 2 }), rand(g, { 6, 2 }), rand(g, { 2 }), { reverse = true }
    end,
    function(g) return rand(g, { 1, 1, 3 }), rand(g, { 1, 1 }), rand(g, { 3, 1 }), rand(g, { 1 }) end,
  },
  why = "golden gru, spec/nn/recurrent_spec.lua step by step",
}
R.rnn_seq = {
  args = function(g) return rand(g, { 4, 2, 3 }), rand(g, { 2, 3 }), rand(g, { 3, 3 }) end,
  more = {
    function(g) return rand(g, { 3, 1, 2 }), rand(g, { 1, 2 }), rand(g, { 2, 2 }), { reverse = true } end,
    function(g) return rand(g, { 1, 1, 1 }), rand(g, { 1, 1 }), rand(g, { 1, 1 }) end,
  },
  why = "golden rnn, spec/nn/recurrent_spec.lua step by step",
}
R.ctc_nll = {
  args = function(g)
    return rand(g, { 5, 2, 4 }):log_softmax(-1), T.tensor({ { 2, 3 }, { 4, 4 } }, { dtype = "i64" }),
      T.tensor({ 5, 4 }, { dtype = "i64" }), T.tensor({ 2, 1 }, { dtype = "i64" }), { blank = 1 }
  end,
  golden = "ctc_loss",
  skip_grad = "the gradient takes log_probs for a log_softmax; golden judges it",
}
R.embedding = {
  args = function(g) return rand(g, { 5, 2 }), ints(g, { 2, 3 }, 1, 5) end,
  ref = function(w, ids)
    return oracle.pick(w, { 2, 3, 2 }, function(i) return { ids.data[(i[1] - 1) * 3 + i[2]], i[3] } end)
  end,
}

return R
