-- SPDX-License-Identifier: MIT
-- The generated files of docs/ are what docs/make/run.lua would write now.
local term = require "spec.support.terminal"
local root = os.getenv "PERILUNE_ROOT" or "."

describe("generated files", function()
  if not term.there() then return it("need the command", function() pending(term.missing "perilune") end) end
  it("are up to date", function()
    local text, status = term.shell(("%s run %s/docs/make/run.lua -- --check"):format(term.quote(term.command),
      term.quote(root)))
    assert.same({ "", 0 }, { text, status })
  end)

  describe("of the reference", function()
    local dir, remove
    setup(function()
      dir, remove = term.folder()
      local text, status = term.shell(("%s run %s/docs/make/run.lua -- --into %s"):format(term.quote(term.command),
        term.quote(root), term.quote(dir)))
      assert.same({ "", 0 }, { text, status })
    end)
    teardown(function() remove() end)

    -- Everything that a script can call: the names of T, its spaces, nn, optim.
    local function names()
      local T = require "perilune"
      local list = {}
      for key, v in pairs(T) do
        local meta = type(v) == "table" and getmetatable(v)
        if type(v) == "function" or (meta and meta.__call) then list[#list + 1] = "T." .. key end
      end
      for space, holder in pairs { nn = T.nn, optim = T.optim, ["nn.F"] = T.nn.F, ["nn.init"] = T.nn.init } do
        for key, v in pairs(holder) do
          local meta = type(v) == "table" and getmetatable(v)
          if type(v) == "function" or (meta and meta.__call) then list[#list + 1] = space .. "." .. key end
        end
      end
      return list
    end

    it("name every public function and class, in HTML and for editors", function()
      local missing, index = {}, term.read(dir .. "/html/names.js")
      local meta = "\n" .. term.read(dir .. "/luals/perilune.lua")
      local function inplace(name) -- told by the page of the op
        return name:find "_$" and index:find(('["%s"'):format(name:sub(1, -2)), 1, true)
      end
      for _, name in ipairs(names()) do
        if not index:find(('["%s"'):format(name), 1, true) and not inplace(name) then missing[#missing + 1] = name end
        if not meta:find("\nfunction " .. name .. "(", 1, true) and not meta:find("\n" .. name .. " = {}", 1, true)
          and not inplace(name) then missing[#missing + 1] = name .. " (luals)" end
      end
      table.sort(missing)
      assert.equal("", table.concat(missing, " "))
    end)

    it("give editors the parameters of every op by its own names, and objects their methods", function()
      local T = require "perilune"
      local keywords, pages = require("perilune.repl.lex").keywords, require("perilune.help.pages").all()
      local meta, missing = "\n" .. term.read(dir .. "/luals/perilune.lua"), {}
      for _, op in ipairs(T.core.ops()) do
        -- one whose function is written in Lua has a page of its own: T.zeros takes more forms than its op
        local listed = not pages[op.name] and meta:match(("\nfunction T%%.%s%%(([^\n]*)%%) end\n"):format(op.name))
        if listed then
          local seen = {}
          for name in listed:gmatch "[%w_]+" do seen[name] = true end
          for _, a in ipairs(op.args) do
            if not seen[a] and a:find "^[%w_]+$" then missing[#missing + 1] = op.name .. ": " .. a end
          end
          for _, a in ipairs(op.attrs) do
            local name = keywords[a.name] and a.name .. "_" or a.name
            if not seen[name] then missing[#missing + 1] = op.name .. ": " .. name end
          end
        end
      end
      assert.same({}, missing)
      for _, line in ipairs { "---@class nn.Linear: nn.Module",
        "---@field forward fun(self: nn.Linear, x?: perilune.Tensor): perilune.Tensor",
        "---@return nn.Linear", "---@class optim.Adam: optim.Optimizer", "---@class optim.Optimizer",
        "---@field step fun(self: optim.Optimizer, closure?: function|perilune.Jit): perilune.Argument",
        "---@class perilune.log",
        "function T.log.csv(path, options, ...) end", "function T.rand(...) end" } do
        assert.truthy(meta:find("\n" .. line, 1, true), line)
      end
    end)

    -- One inventory for help, the reference, editors and examples.
    it("give every public name help, and editors the types of its declared arguments", function()
      local list = dofile(root .. "/docs/make/inventory.lua").all()
      local about, T = require "perilune.repl.about", require "perilune"
      local env, meta = { T = T, nn = T.nn, optim = T.optim }, term.read(dir .. "/luals/perilune.lua")
      local without, declared = {}, 0
      local fields = {}
      for class, body in meta:gmatch "\n%-%-%-@class ([%w_.]+)%.Options\n(.-)\n\n" do fields[class] = body end
      for _, e in ipairs(list) do
        local text, known = about.name(e.name, env)
        if known == false or not text:find "\n" then without[#without + 1] = e.name .. " (help)" end
        for _, line in ipairs(not e.op and not e.same and e.arguments or {}) do
          local name, kind = line:match "^([%a_][%w_]*): (.*)$"
          declared = declared + (name and 1 or 0)
          local of = name and fields[e.name]
          local type = of and ("\n" .. of .. "\n"):match("\n%-%-%-@field " .. name .. "%? ([^\n]+)\n")
          if name and (not type or type == "any" and not kind:find "^value" and not kind:find "default nil") then
            without[#without + 1] = ("%s: %s (%s)"):format(e.name, line, type or "none")
          end
        end
      end
      assert.is_true(#list > 1200 and declared > 1000, #list .. " names, " .. declared .. " arguments")
      assert.equal("", table.concat(without, "\n"))
      for _, line in ipairs { "---@field bias? boolean", "---@param in_features? perilune.int|nn.Linear.Options",
        "---@overload fun(...: any): perilune.Tensor" } do
        assert.truthy(meta:find("\n" .. line, 1, true), line)
      end
    end)

    it("are found by words, and have the pages of the reference in Markdown", function()
      local index = term.read(dir .. "/html/names.js")
      assert.truthy(index:find('["T.backward","bindings.html#T.backward","Adds the gradients', 1, true))
      for file in io.popen("ls " .. term.quote(dir .. "/reference")):lines() do
        local page = file:gsub("%.md$", ".html")
        if file ~= "README.md" then assert.truthy(#term.read(dir .. "/html/" .. page) > 100, page) end
      end
      local missing = term.missing "node"
      if missing then return end
      local script = term.read(dir .. "/html/search.js")
      local page = ([[var found = []; var box = { value: '', addEventListener: function (n, f) { this[n] = f; } };
        var node = function () { return { appendChild: function (c) { if (c.href) found.push(c.textContent); } }; };
        global.document = { getElementById: function (id) { return id === 'search' ? box : node(); },
          createElement: node, addEventListener: function () {} };
        %s %s
        %%s.forEach(function (typed) { box.value = typed; found = []; box.input();
          console.log(found.slice(0, 3).join(' ')); });
        ]]):format(index:gsub("%%", "%%%%"), script:gsub("%%", "%%%%"))
      local searches = dofile(root .. "/spec/fixtures/searches.lua")
      local typed, wrong = {}, {}
      for _, s in ipairs { { "backward", "T.backward" }, { "x:exp()", "T.exp" }, { "softm", "T.softmax" } } do
        searches[#searches + 1] = s
      end
      for i, s in ipairs(searches) do typed[i] = ("%q"):format(s[1]) end
      local file = dir .. "/search_test.js"
      term.write(file, page:format("[" .. table.concat(typed, ",") .. "]"))
      local at = 0
      for line in term.shell("node " .. term.quote(file)):gmatch "([^\n]*)\n" do
        at = at + 1
        local s, right = searches[at], false
        for name in line:gmatch "%S+" do
          for k = 2, #s do right = right or name:find(s[k]) ~= nil end
        end
        if not right then wrong[#wrong + 1] = s[1] .. ": " .. line end
        -- the prompt finds the same, where it has all of the names
        local first = require("perilune.help.search").find(s[1], 1)[1]
        if at <= #searches - 3 and first.name ~= line:match "%S+" then
          wrong[#wrong + 1] = ("%s: %s at the prompt, %s in a browser"):format(s[1], first.name, line)
        end
      end
      assert.equal(#searches, at)
      assert.same({}, wrong)
    end)

    it("complete the command in a shell", function()
      local missing = term.missing "bash"
      if missing then return pending(missing) end
      local function completed(words, n)
        local text = term.shell(([[PATH=%s:$PATH bash -c 'source %s/docs/completion/perilune.bash
          COMP_WORDS=(%s); COMP_CWORD=%d; _perilune; echo "${COMPREPLY[*]}"']]):format(term.quote(
          (term.command:gsub("/perilune$", ""))), root, words, n))
        return text:gsub("\n$", "")
      end
      assert.equal("doctest", completed("perilune doct", 1))
      assert.equal("softshrink softplus softsign softmax", completed("perilune help soft", 2))
      assert.equal("--atol --any-dtype", completed("perilune diff --a", 2))
    end)

    it("give every name a text and an example", function()
      local without, count = {}, 0
      for path in io.popen(("ls %s/html/*.html"):format(term.quote(dir))):lines() do
        for id, body in term.read(path):gmatch '<article id="([^"]+)">(.-)</article>' do
          count = count + 1
          if not body:find("<p>", 1, true) then without[#without + 1] = id .. " (text)" end
          if not body:find("<pre>", 1, true) then without[#without + 1] = id .. " (example)" end
        end
      end
      assert.is_true(count > 900, count .. " names")
      assert.equal("", table.concat(without, " "))
    end)

    it("are well-formed: definitions compile, pages close their tags, links lead somewhere", function()
      assert(loadfile(dir .. "/luals/perilune.lua"))
      local anchors, links, pages = {}, {}, 0
      for path in io.popen(("ls %s/html/*.html"):format(term.quote(dir))):lines() do
        local text, file = term.read(path), path:match "[^/]*$"
        pages = pages + 1
        local depth = {}
        for close, tag in text:gsub("<!.->", ""):gmatch "<(/?)(%a%w*)[^>]*>" do
          local void = tag == "meta" or tag == "link" or tag == "input"
          if close == "" and not void then depth[#depth + 1] = tag end
          if close == "/" then assert.equal(tag, table.remove(depth), file) end
        end
        assert.equal(0, #depth, file)
        for id in text:gmatch 'id="([^"]+)"' do
          assert.is_nil(anchors[file .. "#" .. id], file .. " has two " .. id)
          anchors[file .. "#" .. id] = true
        end
        anchors[file] = true
        for href in text:gmatch 'href="([^"]+)"' do links[href] = file end
      end
      assert.is_true(pages >= 8, pages .. " pages")
      for href, file in pairs(links) do
        if href ~= "style.css" then assert.is_true(anchors[href], file .. " links to " .. href) end
      end
    end)
  end)

  it("are read by man without a complaint", function()
    local text, status = term.shell "command -v groff"
    if status ~= 0 then return pending("no groff" .. text) end
    text, status = term.shell(("groff -man -ww -Tutf8 %s/docs/man/perilune.1 >/dev/null"):format(term.quote(root)))
    assert.same({ "", 0 }, { text, status })
  end)
end)
