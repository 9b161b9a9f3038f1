-- SPDX-License-Identifier: MIT
-- Residual networks, small GPTs and a character LSTM. A workload whose layers do not exist yet returns the
-- reason as a string, and the runner skips it.

return function(T, W, tools)
  local nn, optim = T.nn, T.optim
  local F = nn.F

  -- The first of the given names (of nn, or optim.X) that is missing, as a reason; nil if all are there.
  local function missing(...)
    for _, name in ipairs { ... } do
      local group, key = T, name
      for g in name:gmatch("([%w_]+)%.") do group, key = group and group[g], name:match("[%w_]+$") end
      if not group or not group[key] then return "needs " .. name .. ", which is not there yet" end
    end
  end

  -- ---- residual networks --------------------------------------------------------------------

  local function conv_bn(cin, cout, size, stride, relu)
    local layers = {
      nn.Conv2d(cin, cout, size, { stride = stride or 1, padding = size // 2, bias = false }),
      nn.BatchNorm2d(cout),
    }
    if relu ~= false then layers[3] = nn.ReLU() end
    return nn.Sequential(table.unpack(layers))
  end

  local function residual(cin, width, stride, bottleneck)
    local cout = bottleneck and 4 * width or width
    local Block = nn.class("Residual")
    function Block:init()
      if bottleneck then
        self.body = nn.Sequential(conv_bn(cin, width, 1), conv_bn(width, width, 3, stride),
          conv_bn(width, cout, 1, 1, false))
      else
        self.body = nn.Sequential(conv_bn(cin, width, 3, stride), conv_bn(width, cout, 3, 1, false))
      end
      if cin ~= cout or stride ~= 1 then self.short = conv_bn(cin, cout, 1, stride, false) end
    end
    function Block:forward(x)
      return F.relu(self.body(x) + (self.short and self.short(x) or x))
    end
    return Block(), cout
  end

  local function resnet(depths, bottleneck, imagenet, classes)
    local layers = {}
    if imagenet then
      layers[1] = conv_bn(3, 64, 7, 2)
      layers[2] = nn.MaxPool2d(3, { stride = 2, padding = 1 })
    else
      layers[1] = conv_bn(3, 64, 3)
    end
    local cin = 64
    for stage, depth in ipairs(depths) do
      for i = 1, depth do
        local block
        block, cin = residual(cin, 32 << stage, (stage > 1 and i == 1) and 2 or 1, bottleneck)
        layers[#layers + 1] = block
      end
    end
    local Net = nn.class("ResNet")
    function Net:init()
      self.blocks = nn.Sequential(table.unpack(layers))
      self.head = nn.Linear(cin, classes)
    end
    function Net:forward(x)
      return self.head(self.blocks(x):mean({ 3, 4 }))
    end
    return Net()
  end

  tools.resnet = resnet

  local function resnet_step(batch, size, depths, bottleneck, imagenet, classes)
    return function()
      local why = missing("nn.BatchNorm2d")
      if why then return why end
      local model = resnet(depths, bottleneck, imagenet, classes)
      return tools.on_batch(tools.trainer(model, tools.sgd(model)), T.randn(batch, 3, size, size),
        T.randint(1, classes, { batch }))
    end
  end
  W.resnet18_cifar_step_b64 = resnet_step(64, 32, { 2, 2, 2, 2 }, false, false, 10)
  W.resnet50_b8_mem = resnet_step(8, 224, { 3, 4, 6, 3 }, true, true, 1000)

  -- ---- GPT -------------------------------------------------------------------------------------

  -- Causal attention on [B, H, S, D]: the fused op where it exists, else spelled out.
  local function attention(S, D)
    if F.scaled_dot_product_attention then
      return function(q, k, v) return F.scaled_dot_product_attention(q, k, v, { is_causal = true }) end
    end
    local future = T.ones(S, S):triu(1):to("bool")
    return function(q, k, v)
      local score = q:matmul(k:transpose(-2, -1)) * (1 / math.sqrt(D))
      return score:masked_fill(future, -math.huge):softmax(-1):matmul(v)
    end
  end

  local function gpt(layers, heads, dim, block, vocab)
    local Block = nn.class("GPTBlock")
    function Block:init()
      self.norm1 = nn.LayerNorm(dim, { bias = false })
      self.qkv = nn.Linear(dim, 3 * dim, { bias = false })
      self.proj = nn.Linear(dim, dim, { bias = false })
      self.norm2 = nn.LayerNorm(dim, { bias = false })
      self.up = nn.Linear(dim, 4 * dim, { bias = false })
      self.down = nn.Linear(4 * dim, dim, { bias = false })
    end
    local attend = attention(block, dim // heads)
    function Block:forward(x)
      local B, S = x:size(1), x:size(2)
      local part = self.qkv(self.norm1(x)):split(dim, 3)
      for i, z in ipairs(part) do part[i] = z:view(B, S, heads, dim // heads):transpose(2, 3) end
      local y = attend(part[1], part[2], part[3]):transpose(2, 3):reshape(B, S, dim)
      x = x + self.proj(y)
      return x + self.down(F.gelu(self.up(self.norm2(x))))
    end

    local GPT = nn.class("GPT")
    function GPT:init()
      self.token = nn.Embedding(vocab, dim)
      self.place = nn.Embedding(block, dim)
      local blocks = {}
      for i = 1, layers do blocks[i] = Block() end
      self.blocks = nn.Sequential(table.unpack(blocks))
      self.norm = nn.LayerNorm(dim, { bias = false })
    end
    function GPT:forward(ids)
      local x = self.token(ids) + self.place.weight:narrow(1, 1, ids:size(2))
      return F.linear(self.norm(self.blocks(x)), self.token.weight)
    end
    local model = GPT()
    for _, p in ipairs(model:parameters()) do
      if p:dim() == 2 then nn.init.normal_(p, { std = 0.02 }) end
    end
    return model
  end

  tools.gpt = gpt

  -- AdamW with decay on matrices only.
  function tools.adamw(model)
    local matrices, vectors = {}, {}
    for _, p in ipairs(model:parameters()) do
      local list = p:dim() >= 2 and matrices or vectors
      list[#list + 1] = p
    end
    return optim.AdamW({
      { params = matrices, weight_decay = 0.1 },
      { params = vectors, weight_decay = 0.0 },
    }, { lr = 1e-3, betas = { 0.9, 0.99 }, eps = 1e-8 })
  end

  local function gpt_step(batch, ...)
    local size = { ... }
    return function()
      local why = missing("nn.utils.clip_grad_norm_", "nn.F.gelu", "nn.F.linear")
      if why then return why end
      local model = gpt(table.unpack(size))
      local step = tools.trainer(model, tools.adamw(model), function(ps) nn.utils.clip_grad_norm_(ps, 1.0) end)
      local block, vocab = size[4], size[5]
      local x, y = T.randint(1, vocab, { batch, block }), T.randint(1, vocab, { batch, block })
      return tools.on_batch(step, x, y)
    end
  end
  W.gpt_nano_step = gpt_step(12, 4, 4, 128, 64, 65)
  W.gptmed_mem = gpt_step(8, 8, 8, 512, 256, 8192)

  -- ---- LSTM ------------------------------------------------------------------------------------

  function tools.char_lstm()
    local Net = nn.class("CharLSTM")
    function Net:init()
      self.embed = nn.Embedding(65, 65)
      self.lstm = nn.LSTM(65, 128, { num_layers = 2, batch_first = true })
      self.head = nn.Linear(128, 65)
    end
    function Net:forward(ids)
      local out = self.lstm(self.embed(ids))
      return self.head(out)
    end
    return Net()
  end

  function W.lstm_char_step()
    local why = missing("nn.LSTM", "optim.RMSprop", "nn.utils.clip_grad_value_")
    if why then return why end
    local model = tools.char_lstm()
    local opt = optim.RMSprop(model:parameters(), { lr = 2e-3, alpha = 0.95, eps = 1e-8 })
    local step = tools.trainer(model, opt, function(ps) nn.utils.clip_grad_value_(ps, 5.0) end)
    return tools.on_batch(step, T.randint(1, 65, { 50, 50 }), T.randint(1, 65, { 50, 50 }))
  end
end
