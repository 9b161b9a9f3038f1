-- help(x): what an op is, from its descriptor; what another function is, from pages.lua. T.help("softmax"),
-- T.help(T.softmax); T.help() lists all names.
-- T.info() describes this build for bug reports.
return function(T, core)
  local by_name, by_function, symbols, written

  local function load()
    by_name, by_function, symbols, written = {}, {}, require("perilune.help.pages").all(), {}
    for _, op in ipairs(core.ops()) do
      by_name[op.name] = op
      local f = core.op[op.name]
      if f then by_function[f] = op end
      if T[op.name] then by_function[T[op.name]] = op end
    end
    for name, entry in pairs(symbols) do -- another name of an op leads to the op's page
      local f = rawget(T, name)
      if name:find(".", 1, true) then
        f = T
        for key in name:gmatch("[^.]+") do f = type(f) == "table" and f[key] or nil end
      end
      if f and not entry.same and not by_function[f] then written[f] = entry end
    end
  end

  -- nn.F.conv2d is the op conv2d with more forms of its arguments.
  local function of_functional(f)
    for name, op in pairs(by_name) do if rawget(T.nn.F, name) == f then return op end end
  end

  local function indented(text) return "  " .. text:gsub("\n", "\n  ") end

  local reference
  local function page(op)
    reference = reference or require "perilune.help.reference"
    local lines = { "T." .. reference.op_signature(op), op.doc }
    if op.formula then lines[#lines + 1] = op.formula end
    for _, line in ipairs(reference.op_arguments(op)) do lines[#lines + 1] = "  " .. line end
    lines[#lines + 1] = "  " .. reference.op_notes(op)
    if op.example then lines[#lines + 1] = indented(op.example) end
    return table.concat(lines, "\n")
  end

  -- The page of a name, and behind it the functions that T.log or T.cuda has as a table.
  local function with_names(text, what)
    local names = type(what) == "string" and require("perilune.help.reference").namespace(what)
    return names and text .. "\n" .. names or text
  end

  local function written_page(entry)
    local lines = { entry.signature, entry.text }
    if entry.shapes then lines[3] = "  shapes: " .. entry.shapes end
    for _, line in ipairs(entry.arguments) do lines[#lines + 1] = "  " .. line end
    lines[#lines + 1] = indented(entry.example)
    return table.concat(lines, "\n")
  end

  -- T.help(name or function) prints and returns nothing; T.help_text(…) returns the text or nil.
  --- T.help_text(what) → string
  -- What T.help prints.
  --   print(T.help_text(T.relu):match("^[^\n]+"))  --> T.relu(x)
  T.help_text = function(what)
    if not by_name then load() end
    local entry
    if type(what) == "string" then
      what = what:gsub("^T%.", "")
      entry = symbols[what]
    elseif what ~= nil then
      entry = written[what]
    end
    if entry then return with_names(written_page(entry), what) end
    local op = what ~= nil and (by_function[what] or by_name[what])
    if not op and type(what) == "string" and (rawget(T, what) or core.metatable().methods[what]) then
      op = by_name[what:match("^(.*)_$")]
    end
    if not op and type(what) == "string" and what:find ".%." then -- nn.F.embedding is an op, too
      local value = T
      for key in what:gmatch "[^.]+" do value = type(value) == "table" and value[key] or nil end
      if type(value) == "function" then op = by_function[value] or of_functional(value) end
    end
    if op then return with_names(page(op), what) end
    if type(what) == "function" and of_functional(what) then return page(of_functional(what)) end
    if what == nil then
      return require("perilune.help.reference").topics()
    end
    if core.is_tensor(what) then return what:brief() end
    if type(what) == "function" then -- a method that is neither an op nor written with help of its own: x.shape
      for name, f in next, core.metatable().methods do
        local known = symbols[name] or by_name[name:match("^(.*)_$") or name]
        if known and rawequal(f, what) then return T.help_text(name) end
      end
      local text = require("perilune.help.methods").of(what)
      if text then return text end
    end
    if type(what) == "string" and what:find "%w%s+%w" then -- words: what is spoken of them
      local found = require("perilune.help.search").lines(what, 8)
      return found and ("What speaks of %s:\n%s"):format(what, found) or ("nothing speaks of %s"):format(what)
    end
    if type(what) == "string" then
      local pages = require "perilune.help.reference"
      local names = pages.topic(what) or pages.namespace(what)
      if names then return names end
      local method = what:match "^[Tt]ensor[.:]([%a_][%w_]*)$" or what:match "^x[.:]([%a_][%w_]*)$"
      if method and (symbols[method] or core.metatable().methods[method]) then return T.help_text(method) end
      local text, lacking = require("perilune.help.methods").named(what)
      if text or lacking then return text or lacking end
      local path = require("perilune.help.elsewhere").meant(what)
      local plain = path and path:gsub("^T%.", ""):gsub("^x:", "")
      local function bare(name) return name:match("[^.:]*$"):lower():gsub("_", "") end
      local known = plain and plain ~= what and (symbols[plain] or by_name[plain])
      if known and bare(plain) == bare(what) then
        return ("There is no %s; this is %s.\n%s"):format(what, path, T.help_text(plain))
      end
      local spoken = #what > 2 and require("perilune.help.search").lines(what, 8)
      return ("no op named '%s'%s%s"):format(what, known and ("; did you mean %s?"):format(plain)
        or path and ("; is %s meant?"):format(path) or "", spoken and "\nIt is spoken of in\n" .. spoken or "")
    end
    return "no help for this value"
  end

  --- T.help(what)
  -- Prints what an op or a function is: by name or by value. T.help() lists topics, T.help("topic") the names of one.
  --   T.help("help_text")
  T.help = function(what) print(T.help_text(what)) end

  --- T.info() → string
  -- Version, libraries, threads, memory: the block for a bug report.
  --   print(T.info():match("^%a+"))  --> perilune
  T.info = function()
    local m = core.memory()
    local libraries, found = core.libraries()
    for i, name in ipairs(libraries) do libraries[i] = found[i] and name or name .. " (not found here)" end
    if #libraries == 0 then libraries[1] = "no libraries" end
    local system, compiler = core.system()
    local cpuinfo = io.open "/proc/cpuinfo"
    local processor = cpuinfo and cpuinfo:read("a"):match "model name%s*:%s*([^\n]+)"
    if cpuinfo then cpuinfo:close() end
    local cuda, why = core.device.available()
    if cuda then
      local d = core.device.info()
      why = ("cuda: %s, sm_%d%d, %.1f GiB, %s%s"):format(d.name, d.major, d.minor, d.memory / 2 ^ 30,
        d.libraries, d.kind == "cuda" and "" or ", " .. d.kind)
    end
    return table.concat({
      "perilune " .. core.version .. ", " .. _VERSION .. ", made by " .. compiler,
      "system: " .. system .. (processor and ", " .. processor or ""),
      "kernels: " .. core.isa() .. ", " .. table.concat(libraries, ", "),
      ("threads: %d"):format(core.get_num_threads()),
      "device: " .. core.device.default(),
      why,
      ("memory: %d bytes live in %d blocks, peak %d"):format(m.live, m.blocks, m.peak),
    }, "\n")
  end
end
