-- SPDX-License-Identifier: MIT
-- The subcommands of perilune that are written in Lua. Each is a function of its arguments that prints, and returns the
-- exit status: 0 all went well, 1 something is wrong with what it was given, 2 wrong usage.
local pages = require "perilune.command.pages"

local M = {}

local OK, FAILED, USAGE = 0, 1, 2

-- ---- help -----------------------------------------------------------------------------------------------------

function M.overview()
  local lines, widest = { "usage: perilune [COMMAND | FILE.lua ARGS...]" }, 0
  for _, page in ipairs(pages) do widest = math.max(widest, #page[2]) end
  for _, page in ipairs(pages) do
    lines[#lines + 1] = ("  perilune %s%s  %s"):format(page[2], (" "):rep(widest - #page[2]), page[3])
  end
  lines[#lines + 1] = "  perilune --version, --help; perilune COMMAND --help tells more"
  lines[#lines + 1] = "Exit status: " .. pages.exits
  return table.concat(lines, "\n")
end

function M.page(name)
  for _, page in ipairs(pages) do
    if page[1] == name then
      return ("usage: perilune %s\n%s%s%s"):format(page[2], page[3], page[4] ~= "" and "\n" or "", page[4])
    end
  end
end

local function usage(name, message)
  io.stderr:write(("perilune %s: %s\nusage: perilune %s\n"):format(name, message,
    (M.page(name) or ""):match "^usage: perilune ([^\n]*)"))
  return USAGE
end

-- ---- small commands -------------------------------------------------------------------------------------------

local commands = {}

function commands.info(...)
  if select("#", ...) > 0 then return usage("info", "takes no arguments") end
  print(require("perilune").info())
  return OK
end

function commands.help(...)
  local T = require "perilune"
  if select("#", ...) == 0 then
    print(T.help_text())
    return OK
  end
  if ... == "--names" then
    for _, page in ipairs(require("perilune.help.reference").pages()) do
      for _, e in ipairs(page.entries) do print((e.name:gsub("^T%.", ""))) end
    end
    return OK
  end
  local about = require "perilune.repl.about"
  local env = setmetatable({ T = T, nn = T.nn, optim = T.optim }, { __index = _G })
  local status, pages_of, all = OK, {}, true
  local function page_of(name)
    local text, known = require("perilune.help.reference").topic(name), nil
    if not text then text, known = about.name(name, env) end
    if known == false and M.page(name) then text, known = M.page(name), true end
    return { text, known ~= false }
  end
  for i, name in ipairs { ... } do
    pages_of[i] = page_of(name)
    all = all and pages_of[i][2]
  end
  local words = table.concat({ ... }, " ") -- perilune help learning rate: words, where not each is a name
  if #pages_of > 1 and not all and words:find "^[%w%s_%-]+$" and require("perilune.help.search").covers(words) then
    pages_of = { page_of(words) }
  end
  for _, page in ipairs(pages_of) do
    local text, known = page[1], page[2]
    if not known then
      io.stderr:write("perilune help: ", text, "\n")
      status = FAILED
    else
      print(text)
    end
  end
  return status
end

-- Splits arguments into flags and the rest. known: name → true for a switch, "number" or "text" for one with a
-- value, "list" for one with a value that may come several times.
-- → flags, rest; or nil, message
local function parse(known, ...)
  local flags, rest, args = {}, {}, { ... }
  local i = 1
  while i <= #args do
    local arg = args[i]
    local name, inline = arg:match "^%-%-([%w-]+)=?(.*)$"
    if arg == "--" then
      return flags, table.move(args, i + 1, #args, #rest + 1, rest)
    elseif name and known[name] == "number" then
      if inline == "" then
        i = i + 1
        inline = args[i] or ""
      end
      flags[name] = tonumber(inline)
      if not flags[name] or flags[name] < 0 then
        return nil, ("--%s needs a number >= 0, got '%s'"):format(name, inline)
      end
    elseif name and known[name] == "text" then
      if inline == "" then
        i = i + 1
        inline = args[i] or ""
      end
      if inline == "" then return nil, ("--%s needs a value"):format(name) end
      flags[name] = inline
    elseif name and known[name] == "list" then
      if inline == "" then
        i = i + 1
        inline = args[i] or ""
      end
      if inline == "" then return nil, ("--%s needs a value"):format(name) end
      flags[name] = flags[name] or {}
      table.insert(flags[name], inline)
    elseif name and known[name] and inline == "" then
      flags[name] = true
    elseif arg:sub(1, 1) == "-" and arg ~= "-" then
      return nil, "unknown option " .. arg
    else
      rest[#rest + 1] = arg
    end
    i = i + 1
  end
  return flags, rest
end

function commands.peek(...)
  local flags, rest = parse({ header = true }, ...)
  if not flags then return usage("peek", rest) end
  if #rest == 0 then return usage("peek", "which file?") end
  return require "perilune.command.peek" (rest, not flags.header)
end

function commands.diff(...)
  local flags, rest = parse({ atol = "number", rtol = "number", ["any-dtype"] = true }, ...)
  if not flags then return usage("diff", rest) end
  if #rest ~= 2 then return usage("diff", "two files are compared, got " .. #rest) end
  return require "perilune.command.diff" (rest[1], rest[2],
    { atol = flags.atol or 0, rtol = flags.rtol or 0, any_dtype = flags["any-dtype"] })
end

function commands.convert(...)
  local flags, rest = parse({ type = "text", dtype = "text", size = "list" }, ...)
  if not flags then return usage("convert", rest) end
  if #rest ~= 2 then return usage("convert", "two files are wanted, got " .. #rest) end
  local convert = require "perilune.command.convert"
  local problem = convert.problem(rest[2], flags)
  if problem then return usage("convert", problem) end
  return convert.run(rest[1], rest[2], flags)
end

function commands.build(...)
  local args = { ... }
  for i, arg in ipairs(args) do
    if arg == "-o" then args[i] = "--output" end
  end
  local flags, rest = parse({ output = "text", name = "text", static = true, size = "list" }, table.unpack(args))
  if not flags then return usage("build", rest) end
  if #rest ~= 1 then return usage("build", "one model is wanted, got " .. #rest) end
  if not flags.output then return usage("build", "-o says what is made") end
  local build = require "perilune.command.build"
  local problem = build.problem(flags.output, flags)
  if problem then return usage("build", problem) end
  return build.run(rest[1], flags.output, flags)
end

function commands.doctest(...)
  local flags, rest = parse({ verbose = true }, ...)
  if not flags then return usage("doctest", rest) end
  if #rest == 0 then return usage("doctest", "which file?") end
  return require("perilune.command.doctest").main(rest, flags.verbose)
end

commands["new"] = function(...)
  local flags, rest = parse({}, ...)
  if not flags then return usage("new", rest) end
  if #rest ~= 1 then return usage("new", "one name is wanted, got " .. #rest) end
  return require "perilune.command.new" (rest[1])
end

function commands.watch(...)
  local flags, rest = parse({ port = "number" }, ...)
  if not flags then return usage("watch", rest) end
  if #rest ~= 1 then return usage("watch", "one folder is wanted, got " .. #rest) end
  local port = flags.port and math.tointeger(flags.port)
  if flags.port and (not port or port > 65535) then return usage("watch", "--port needs an integer from 0 to 65535") end
  return require("perilune.watch").main(rest[1], port)
end

local integers = { "max-new-tokens", "top-k", "seed", "port", "max-queue", "max-streams", "timeout" }
local of_models = { tokenizer = "text", template = "text", dtype = "text", device = "text",
  ["max-new-tokens"] = "number" }
local of_sampling = { temperature = "number", ["top-k"] = "number", ["top-p"] = "number", ["min-p"] = "number",
  ["repetition-penalty"] = "number", seed = "number", stop = "list" }

-- Flags of a command that runs a model, by names as Lua has them, and the rest; or nil, message.
local function model_flags(known, ...)
  local all = {}
  for _, list in ipairs(known) do for name, kind in pairs(list) do all[name] = kind end end
  local flags, rest = parse(all, ...)
  if not flags then return nil, rest end
  for _, name in ipairs(integers) do
    local v = flags[name]
    if v and not math.tointeger(v) then return nil, ("--%s needs an integer, got %g"):format(name, v) end
    flags[name] = v and math.tointeger(v)
  end
  for _, name in ipairs { "max-new-tokens", "max-queue", "max-streams", "timeout" } do
    if flags[name] == 0 then return nil, ("--%s needs an integer >= 1"):format(name) end
  end
  for _, name in ipairs { "top-p", "min-p" } do
    if flags[name] and flags[name] > 1 then return nil, ("--%s is a probability, got %g"):format(name, flags[name]) end
  end
  for _, name in ipairs { "top-p", "repetition-penalty" } do
    if flags[name] == 0 then return nil, ("--%s must be more than 0"):format(name) end
  end
  if flags.dtype and not ({ f32 = 1, f16 = 1, bf16 = 1, f64 = 1, file = 1 })[flags.dtype] then
    return nil, "--dtype is f32, bf16, f16, f64 or file, got " .. flags.dtype
  end
  local out = {}
  for name, v in pairs(flags) do out[name:gsub("-", "_")] = v end
  return out, rest
end

function commands.generate(...)
  local flags, rest = model_flags({ of_models, of_sampling }, ...)
  if not flags then return usage("generate", rest) end
  if #rest ~= 2 then return usage("generate", "a model and a prompt are wanted, got " .. #rest .. " arguments") end
  return require "perilune.command.generate" (rest[1], rest[2], flags)
end

function commands.chat(...)
  local flags, rest = model_flags({ of_models, of_sampling, { system = "text" } }, ...)
  if not flags then return usage("chat", rest) end
  if #rest ~= 1 then return usage("chat", "one model is wanted, got " .. #rest) end
  return require "perilune.command.chat" (rest[1], flags)
end

function commands.serve(...)
  local flags, rest = model_flags({ of_models, { host = "text", port = "number", name = "text", timeout = "number",
    ["max-queue"] = "number", ["max-streams"] = "number" } }, ...)
  if not flags then return usage("serve", rest) end
  if #rest ~= 1 then return usage("serve", "one model is wanted, got " .. #rest) end
  if flags.port and flags.port > 65535 then return usage("serve", "--port needs an integer from 0 to 65535") end
  return require("perilune.serve").main(rest[1], flags)
end

function commands.bench(...) return require "perilune.command.bench" (...) end

function commands.launch(...)
  local status, message = require "perilune.command.launch" (...)
  return status or usage("launch", message)
end

function commands.kernel(verb, ...)
  local flags, rest = parse({ user = true, prefix = "text", name = "text" }, ...)
  if not flags then return usage("kernel", rest) end
  local status, message = require "perilune.command.kernel" (verb, flags, rest)
  return status or usage("kernel", message)
end

-- perilune.command(name, …) → exit status
return function(name, ...)
  if name == "--help" then
    print(M.overview())
    return OK
  end
  if name == "--unknown" then
    local word, names = ..., {}
    for i, page in ipairs(pages) do names[i] = page[1] end
    table.sort(names)
    local near = require("perilune.options").nearest(word, names)
    io.stderr:write(("perilune: there is no command and no file %s%s; see perilune --help\n"):format(word,
      near and (", did you mean perilune %s?"):format(near) or ""))
    return USAGE
  end
  local first = ...
  local f = commands[name]
  if not f or first == "--help" or first == "-h" then
    print(M.page(name) or M.overview())
    return OK
  end
  return f(...)
end
