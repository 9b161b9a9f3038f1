-- SPDX-License-Identifier: MIT
-- Completion by Tab, in real shells on a terminal: each command, each of its options, what stands behind them and what
-- their arguments are, from the command's pages. What the shell then runs is printed: the words as they were completed.

local term = require "spec.support.terminal"
local pages = require "perilune.command.pages"
local q = term.quote

local root = os.getenv "PERILUNE_ROOT" or "."
local completion = root .. "/docs/completion"

local command = term.command:find "^/" and term.command or os.getenv "PWD" .. "/" .. term.command

-- The shells: how each is started with nothing of the user's, what it is told first, and the function that shows words
-- (completion itself asks it for names, through a pipe).
local SHELLS = {
  bash = { "bash --norc --noprofile -i", "bind 'set bell-style none'; source %s/perilune.bash",
    "perilune() { if [ -t 1 ]; then printf '<%%s>' \"$@\"; printf '{%%s}\\n' done; else %s \"$@\"; fi; }" },
  zsh = { "zsh -f -i", "fpath=(%s $fpath); autoload -Uz compinit; compinit -u -D; unsetopt beep zle_bracketed_paste",
    "perilune() { if [ -t 1 ]; then printf '<%%s>' \"$@\"; printf '{%%s}\\n' done; else %s \"$@\"; fi; }" },
  fish = { "fish --no-config -i", "source %s/perilune.fish",
    "function perilune; if isatty stdout; printf '<%%s>' $argv; printf '{%%s}\\n' done; else; %s $argv; "
      .. "end; end" },
}

-- {typed, completed}: commands and long options by their shortest beginnings that are no other's.
local function shortest(word, others, least)
  for n = least, #word - 1 do
    local alone = true
    for _, o in ipairs(others) do alone = alone and (o == word or o:sub(1, n) ~= word:sub(1, n)) end
    if alone then return word:sub(1, n) end
  end
end

local cases, names = {}, {} -- of the options of a command one, all with PERILUNE_SLOW: they take seconds
for _, page in ipairs(pages) do if page[1] ~= "-e" then names[#names + 1] = page[1] end end
for _, name in ipairs(names) do
  local typed = shortest(name, names, 1)
  if typed then cases[#cases + 1] = { typed, name } end
end
local options, all = 0, os.getenv "PERILUNE_SLOW"
for _, page in ipairs(pages) do
  local list, seen = {}, {}
  for option in (page[2] .. "\n" .. page[4] .. " --help"):gmatch "%f[%-]%-%-%l[%l-]*" do
    if not seen[option] then seen[option], list[#list + 1] = true, option end
  end
  for _, option in ipairs(page[1] ~= "-e" and list or {}) do
    -- chat has the options of generate, too: what is short enough there is not here
    local typed = shortest(option, list, math.max(4, #option - 2))
    if typed and (all or option == list[#list - 1]) then
      options = options + 1
      cases[#cases + 1] = { page[1] .. " " .. typed, page[1] .. " " .. option }
    end
  end
  for option, words in pairs(page.values or {}) do
    for word in words:gmatch "%S+" do
      local told = page[4]:find("%f[%w_]" .. word .. "%f[^%w_]")
      assert(told or word == "cpu" or page[1] == "convert" and word:find "^b?f%d",
        page[1] .. "'s page says nothing of " .. word)
    end
    local last = words:match "%S+$"
    local head = ("%s --%s "):format(page[1], option)
    cases[#cases + 1] = { head .. last:sub(1, -2), head .. last }
  end
end
for typed, completed in pairs {
  ["help nn.Bilin"] = "help nn.Bilinear", ["run tr"] = "run train.lua", ["tr"] = "train.lua",
  ["peek mo"] = "peek model.onnx", ["build mo"] = "build model.onnx",
  ["build model.onnx -o mo"] = "build model.onnx -o model.onnx",
  ["generate fol"] = "generate folder/", ["chat fol"] = "chat folder/", ["serve fol"] = "serve folder/",
  ["watch ru"] = "watch runs/", ["kernel ins"] = "kernel install", ["kernel install --prefix ru"] = "kernel install "
  .. "--prefix runs/", ["generate --tokenizer fol"] = "generate --tokenizer folder/", ["chat --dev"] = "chat --device",
  ["serve --dtype bf"] = "serve --dtype bf16", ["launch -n 2 tr"] = "launch -n 2 train.lua",
  -- nothing is offered: numbers, texts, a name that there is not yet
  ["generate --top-k mo"] = "generate --top-k mo", ["new mo"] = "new mo", ["watch mo"] = "watch mo",
} do
  cases[#cases + 1] = { typed, completed }
end

describe("Tab", function()
  if not term.there() then return it("completes", function() pending(term.missing "perilune") end) end
  local dir, remove
  setup(function()
    dir, remove = term.folder()
    os.execute(("cd %s && touch train.lua model.onnx && mkdir runs folder && touch folder/config.json"):format(q(dir)))
  end)
  teardown(function() remove() end)

  for shell, how in pairs(SHELLS) do
    it("completes in " .. shell, function()
      local missing = term.missing(shell)
      if missing then return pending(missing) end
      local steps = { { "ready" }, { "send", how[2]:format(completion) .. "\n" }, { "ready" },
        { "send", how[3]:format(command) .. "\n" }, { "ready" }, { "send", "perilune up\n" }, { "expect", "{done}" } }
      for _, case in ipairs(cases) do
        steps[#steps + 1] = { "ready" }
        steps[#steps + 1] = { "send", "perilune " .. case[1] .. "\t\n" }
        steps[#steps + 1] = { "expect", "{done}" }
      end
      steps[#steps + 1] = { "send", "exit\n" }
      local run = term.play(steps, "PS1='$ ' HISTFILE= HOME=" .. q(dir) .. " XDG_CONFIG_HOME=" .. q(dir),
        ("sh -c %s"):format(q(("cd %s && exec %s"):format(q(dir), how[1]))))
      assert.is_nil(run.missing, run.screen:sub(-2000))
      local at = assert(run.screen:find("<up>{done}", 1, true)) + 9
      local wrong = {} -- zsh drops the / behind a folder when the line is done
      for _, case in ipairs(cases) do
        local from, to = run.screen:find("<[^\n]->{done}", at)
        local got = run.screen:sub(from, to):gsub("{done}$", ""):gsub("><", " "):sub(2, -2)
        if got:gsub("/$", "") ~= case[2]:gsub("/$", "") then
          wrong[#wrong + 1] = ("%s: %s, wanted %s"):format(case[1], got, case[2])
        end
        at = to + 1
      end
      assert.equal("", table.concat(wrong, "\n"))
    end)
  end

  it("completes every command and options of most", function()
    local least, few = all and 80 or 50, all and 40 or 10
    assert.is_true(#cases > least and options > few, ("%d, %d options"):format(#cases, options))
  end)
end)
