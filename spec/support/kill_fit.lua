-- SPDX-License-Identifier: MIT
-- A training with checkpoints that spec/lanes/kills_spec.lua ends with kill -9 and starts again. Arguments: the
-- checkpoint, the file of the finished training, 1 to use jit.
local T = require "perilune"
local nn, optim, data = T.nn, T.optim, T.data
local checkpoint, finished, jit = arg[1], arg[2], arg[3] == "1"
T.manual_seed(1)
local x = T.randn(256, 16)
local ds = data.TensorDataset(x, x:matmul(T.randn(16, 4)):argmax(-1))
local net = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))
local opt = optim.Adam(net:parameters(), { lr = 1e-3 })
T.fit(net, { train = data.DataLoader(ds, { batch_size = 16, shuffle = true }), optimizer = opt, epochs = 12,
  scheduler = optim.lr_scheduler.StepLR(opt, { step_size = 3 }), jit = jit, quiet = true,
  checkpoint = { path = checkpoint, every = 3 }, resume = true })
assert(T.save(finished, { net = net:state_dict(), opt = opt:state_dict() }))
