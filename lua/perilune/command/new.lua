-- SPDX-License-Identifier: MIT
-- perilune new NAME: a folder with a small project that trains at once: script, module, test, README.
local terminal = require "perilune.terminal"

local FILES = {}

FILES["train.lua"] = [[
-- Trains the network of model.lua. Run it with: perilune train.lua --help
local T = require "perilune"
local nn, optim = T.nn, T.optim
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local Model = require "model"

local opt = T.cli {
  { "epochs", 20, "passes over the data" },
  { "batch", 32, "samples a step" },
  { "lr", 1e-2, "learning rate" },
  { "seed", 1, "start of the random numbers" },
  { "out", "NAME.safetensors", "where the parameters go" },
}
T.manual_seed(opt.seed)

-- Two moons: replace this by your data. x [N, 2], y [N] with classes 1 and 2.
local function moons(n)
  local angle = T.rand(n) * math.pi
  local upper = T.stack({ angle:cos(), angle:sin() }, 2)
  local lower = T.stack({ 1 - angle:cos(), 0.5 - angle:sin() }, 2)
  local x = T.cat({ upper, lower }, 1) + T.randn(2 * n, 2) * 0.1
  return x, T.cat({ T.ones(n), T.full({ n }, 2) }, 1):long()
end

local x, y = moons(500)
local test_x, test_y = moons(200)
local loader = T.data.DataLoader(T.data.TensorDataset(x, y), { batch_size = opt.batch, shuffle = true })
local net = Model(2, 32, 2)
local optimizer = optim.Adam(net:parameters(), { lr = opt.lr })

for epoch = 1, opt.epochs do
  local total = 0
  for bx, by in loader do
    local loss = nn.F.cross_entropy(net(bx), by)
    optimizer:zero_grad()
    loss:backward()
    optimizer:step()
    total = total + loss:item()
  end
  if epoch % 5 == 0 then print(("epoch %d: mean loss %.4f"):format(epoch, total / #loader)) end
end

local accuracy = T.no_grad(function() return net(test_x):argmax(-1):eq(test_y):float():mean():item() end)
print(("test accuracy %.1f %%"):format(100 * accuracy))
assert(T.save(opt.out, net:state_dict()))
]]

FILES["model.lua"] = [[
-- The network. A class has :init, which makes its parts, and :forward, which computes.
local T = require "perilune"
local nn = T.nn

local Model = nn.class "Model"

function Model:init(inputs, hidden, classes)
  self.first = nn.Linear(inputs, hidden)
  self.second = nn.Linear(hidden, classes)
end

-- x [N, inputs] → scores [N, classes]
function Model:forward(x) return self.second(nn.F.relu(self.first(x))) end

return Model
]]

FILES["check.lua"] = [[
-- perilune check.lua: the shapes are right and the gradients reach every parameter.
local T = require "perilune"
package.path = arg[0]:gsub("[^/]*$", "") .. "?.lua;" .. package.path
local net = require "model" (2, 8, 3)

local y = net(T.randn(5, 2))
assert(y:size(1) == 5 and y:size(2) == 3)
y:sum():backward()
for name, p in net:named_parameters() do assert(p.grad, name .. " has no gradient") end
print "ok"
]]

FILES["README.md"] = [[
# NAME

```sh
perilune train.lua --epochs 20    # trains, prints the test accuracy, saves NAME.safetensors
perilune check.lua                # shapes and gradients
perilune peek NAME.safetensors    # what was saved
```
]]

FILES[".gitignore"] = "*.safetensors\n"

local function write(path, text)
  local f, message = io.open(path, "w")
  if not f then return nil, message end
  local ok, why = f:write(text)
  local closed, late = f:close()
  if not ok or not closed then return nil, path .. ": " .. (why or late) end
  return true
end

-- → exit status
return function(folder)
  local name = folder:match "([^/]+)/*$" or ""
  local function refuse(message)
    io.stderr:write("perilune new: ", message, "\n")
    return 1
  end
  if not name:find "^[%w][%w_.-]*$" then
    return refuse(("'%s' is no name for a project: letters, digits, - _ and . are allowed"):format(name))
  end
  if terminal.list(folder) or io.open(folder) then return refuse(folder .. " exists already") end
  local ok, message = terminal.make_dirs(folder, 511) -- 0777 less the umask
  local names = {}
  for file in pairs(FILES) do names[#names + 1] = file end
  table.sort(names)
  for _, file in ipairs(names) do
    if ok then ok, message = write(folder .. "/" .. file, (FILES[file]:gsub("NAME", name))) end
  end
  if not ok then return refuse(message) end
  print(("made %s: %s\nnext: cd %s && perilune train.lua"):format(folder, table.concat(names, " "), folder))
  return 0
end
