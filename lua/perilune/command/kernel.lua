-- SPDX-License-Identifier: MIT
-- perilune kernel: tells Jupyter of perilune by a kernelspec
-- (jupyter-client.readthedocs.io/en/stable/kernels.html#kernel-specs), and runs the kernel.
local core = require "perilune.core"
local json = require "perilune.io.json"

local OK, FAILED = 0, 1

local function complain(text)
  io.stderr:write("perilune kernel: ", text, "\n")
  return FAILED
end

-- The module that speaks ZeroMQ; nil and what to install.
local function zeromq()
  local ok, found = pcall(require, "perilune.zeromq")
  if ok then return found end
  local library = found:match "(lib[%w_.+-]*%.so[%d.]*): cannot open shared object file"
  if library then
    return nil, ("%s is not installed (Debian: apt-get install %s)"):format(library,
      library:find "sodium" and "libsodium23" or "libzmq5")
  end
  return nil, "this perilune was built without ZeroMQ: install it (Debian: apt-get install libzmq3-dev), then build "
    .. "again (./setup build in the checkout)"
end

-- ---- the kernelspec ---------------------------------------------------------------------------------------------

local function data_folder(flags)
  if flags.prefix then return flags.prefix .. "/share/jupyter" end
  local given, data, home = os.getenv "JUPYTER_DATA_DIR", os.getenv "XDG_DATA_HOME", os.getenv "HOME"
  if given and given ~= "" then return given end
  if data and data ~= "" then return data .. "/jupyter" end
  if home and home ~= "" then return home .. "/.local/share/jupyter" end
  return nil, "there is no HOME; say where with --prefix"
end

local LOGO = [[
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><circle cx="32" cy="32" r="30" fill="#1b2a49"/>
<path d="M40 10a24 24 0 1 0 14 32 19 19 0 1 1-14-32z" fill="#f2ead3"/>
<circle cx="45" cy="22" r="4" fill="#9ec1e8"/></svg>
]]

local function write(path, text)
  local f, why = io.open(path, "wb")
  if not f then return nil, why end
  local ok, problem = f:write(text)
  local closed, reason = f:close()
  if ok and closed then return true end
  return nil, ("%s: %s"):format(path, problem or reason)
end

local function spec(program)
  return { argv = json.array { program, "kernel", "run", "{connection_file}" }, display_name = "Lua (perilune)",
    language = "lua", interrupt_mode = "message", metadata = { debugger = false } }
end

-- Is this folder's kernelspec one of ours? nil: there is none.
local function ours(folder)
  local f = io.open(folder .. "/kernel.json", "rb")
  if not f then return nil end
  f:close()
  local s = json.read(folder .. "/kernel.json")
  local argv = type(s) == "table" and s.argv
  return type(argv) == "table" and argv[2] == "kernel" and argv[3] == "run" and argv[4] == "{connection_file}"
end

local files = { "kernel.json", "logo-svg.svg" }
local verbs = {}

function verbs.install(folder, name)
  local library, lacking = zeromq()
  if not library then return complain(lacking) end
  if ours(folder) == false then
    return complain(("%s is another program's kernel; choose a name with --name"):format(folder))
  end
  local ok, why = core.mkdirs(folder)
  if ok then ok, why = write(folder .. "/logo-svg.svg", LOGO) end
  if ok then ok, why = json.write(folder .. "/kernel.json", spec(core.program())) end
  if not ok then return complain(why) end
  print(("installed the kernel %s in %s"):format(name, folder))
  return OK
end

function verbs.uninstall(folder, name)
  local mine = ours(folder)
  if mine == nil then return complain(("there is no kernel %s in %s"):format(name, folder)) end
  if not mine then return complain(("%s is another program's kernel"):format(folder)) end
  for _, file in ipairs(files) do os.remove(folder .. "/" .. file) end
  local ok, why = os.remove(folder)
  if not ok then return complain(why) end
  print(("removed the kernel %s from %s"):format(name, folder))
  return OK
end

-- verb, options, words → exit status; nil, message for wrong usage
return function(verb, flags, words)
  if verb == "run" then
    if #words ~= 1 or next(flags) then return nil, "run takes one connection file" end
    local library, lacking = zeromq()
    if not library then return complain(lacking) end
    return require "perilune.jupyter.main" (words[1])
  end
  if not verbs[verb or ""] then return nil, verb and "unknown word " .. verb or "install, uninstall or run?" end
  if #words > 0 then return nil, "unknown word " .. words[1] end
  if flags.user and flags.prefix then return nil, "either --user or --prefix" end
  local name = flags.name or "perilune"
  if not name:find "^[%w._-]+$" or name:find "^%.+$" then
    return nil, ("a kernel's name has letters, digits and . _ - alone, got '%s'"):format(name)
  end
  local data, why = data_folder(flags)
  if not data then return complain(why) end
  return verbs[verb](data .. "/kernels/" .. name, name)
end
