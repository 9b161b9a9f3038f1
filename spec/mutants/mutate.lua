-- SPDX-License-Identifier: MIT
-- Makes mutants of C functions: mutate.file(text, first, keep) returns the text with a switch, PLM(number), at each
-- place where one of its mutants differs, and a list of them. One compilation then holds all mutants of a file; the
-- variable pl_mutant says which one is on (spec/mutants/runtime.c). What changes:
--   operator   + and -, * and /, < and <=, == and !=, && and ||, & and |; compound assignments likewise; ! and - go
--   number     one more, one less; floating ones also with the other sign; true and false; enumerators that index
--   condition  of if and ?:, inverted
--   emit       ops of gradient makers: one input alone, inputs swapped, another op
--   statement  left out: assignments, calls, checks, failures
-- What is in error messages stays, and free(): leaks are the sanitizers' business. mutate.header is the text that a
-- mutated file begins with.
local M = {}

M.header = [[
extern int pl_mutant;
extern unsigned char *pl_mutant_hits;
#define PLM(N) (pl_mutant_hits[N] = 1, pl_mutant == (N))
#define PLM_DROP(N, F, G, A, ...) ({ PlVal a_ = (A); PLM(N) ? a_ : F(G, a_ __VA_OPT__(,) __VA_ARGS__); })
#define PLM_SCALE(N, F, G, A, V) ({ PlVal a_ = (A); double v_ = (V); PLM(N) ? a_ : F(G, a_, PLM(N + 1) ? -v_ : v_); })
#define PLM_RSUB(N, F, G, V, A) ({ double v_ = (V); PlVal a_ = (A); PLM(N) ? a_ : F(G, PLM(N + 1) ? -v_ : v_, a_); })
#define PLM_TWO(N, F, G, A, B, ...) ({ PlVal a_ = (A), b_ = (B); PLM(N) ? a_ : PLM(N + 1) ? b_ : \
  PLM(N + 2) ? F(G, b_, a_ __VA_OPT__(,) __VA_ARGS__) : F(G, a_, b_ __VA_OPT__(,) __VA_ARGS__); })
#define PLM_SUM(N, F, ALT, G, A, B) ({ PlVal a_ = (A), b_ = (B); PLM(N) ? a_ : PLM(N + 1) ? b_ : \
  PLM(N + 2) ? ALT(G, a_, b_) : F(G, a_, b_); })
#define PLM_DIFF(N, F, ALT, G, A, B) ({ PlVal a_ = (A), b_ = (B); PLM(N) ? a_ : PLM(N + 1) ? b_ : \
  PLM(N + 2) ? ALT(G, a_, b_) : PLM(N + 3) ? F(G, b_, a_) : F(G, a_, b_); })
#define PLM_WHERE(N, F, G, C, A, B) ({ PlVal c_ = (C), a_ = (A), b_ = (B); PLM(N) ? a_ : PLM(N + 1) ? b_ : \
  PLM(N + 2) ? F(G, c_, b_, a_) : F(G, c_, a_, b_); })
#define PLM_F1(N, F, OP, A) ({ PlVal a_ = (A); PLM(N) ? a_ : F(OP, a_); })
#define PLM_OP1(N, F, G, OP, A) ({ PlVal a_ = (A); PLM(N) ? a_ : F(G, OP, a_); })
#define PLM_OP2(N, F, G, OP, A, B) ({ PlVal a_ = (A), b_ = (B); PLM(N) ? a_ : PLM(N + 1) ? b_ : \
  PLM(N + 2) ? F(G, OP, b_, a_) : F(G, OP, a_, b_); })
#define PLM_OP2S(N, F, G, OP, A, B) ({ PlVal a_ = (A), b_ = (B); PLM(N) ? a_ : PLM(N + 1) ? b_ : F(G, OP, a_, b_); })
]]

local function set(words)
  local s = {}
  for w in words:gmatch "%S+" do s[w] = true end
  return s
end

-- ---- tokens --------------------------------------------------------------------------------------------------------

local three, two = set "<<= >>= ...", set "-> ++ -- << >> <= >= == != && || += -= *= /= %= &= |= ^= ##"

-- Each token has kind, text, from and to (positions); blanks and comments are none. A line of the preprocessor is one.
function M.tokens(text, from, to)
  local list, at, fresh = {}, from or 1, true
  to = to or #text
  local function add(kind, last)
    list[#list + 1] = { kind = kind, text = text:sub(at, last), from = at, to = last }
    at = last + 1
  end
  while at <= to do
    local c = text:sub(at, at)
    if c:find "%s" or c == "\\" then
      fresh = fresh or c == "\n"
      at = at + 1
    elseif text:find("^/%*", at) then
      at = select(2, text:find("%*/", at + 2)) + 1
    elseif text:find("^//", at) then
      at = text:find("\n", at) or to + 1
    else
      if c == "#" and fresh and not from then
        local last = at
        repeat
          last = text:find("\n", last + 1) or to
        until text:sub(last - 1, last - 1) ~= "\\"
        add("line", last - 1)
      elseif c:find "[%a_]" then
        add("name", select(2, text:find("^[%w_]+", at)))
      elseif c:find "%d" or text:find("^%.%d", at) then
        local last = select(2, text:find("^[%w%.]+", at))
        while text:sub(last, last):find "[eEpP]" and text:find("^[+-]", last + 1) and not text:find("^0[xX]%x+$", at) do
          last = select(2, text:find("^[+-][%w%.]+", last + 1))
        end
        add("number", last)
      elseif c == '"' or c == "'" then
        local last = at + 1
        while text:sub(last, last) ~= c do last = last + (text:sub(last, last) == "\\" and 2 or 1) end
        add("text", last)
      else
        add("sign", at + (three[text:sub(at, at + 2)] and 2 or two[text:sub(at, at + 1)] and 1 or 0))
      end
      fresh = false
    end
  end
  -- brackets know their partners, tokens the bracket they are in
  local stack = {}
  for i, t in ipairs(list) do
    if t.kind == "sign" and t.text:find "^[%)%]}]$" then
      local open = table.remove(stack)
      t.match, list[open].match = open, i
    end
    t.inside = stack[#stack]
    if t.kind == "sign" and t.text:find "^[%(%[{]$" then stack[#stack + 1] = i end
  end
  return list
end

-- ---- what is an operand, what an operator

local keyword = set("return else do case goto if while for switch break continue sizeof const static unsigned "
  .. "struct enum default")
local types = set "int double float char bool void unsigned size_t const struct"
local precedence = { ["*"] = 10, ["/"] = 10, ["%"] = 10, ["+"] = 9, ["-"] = 9, ["<<"] = 8, [">>"] = 8, ["<"] = 7,
  [">"] = 7,
  ["<="] = 7, [">="] = 7, ["=="] = 6, ["!="] = 6, ["&"] = 5, ["^"] = 4, ["|"] = 3, ["&&"] = 2, ["||"] = 1 }
local ends = set ", ; ? : = += -= *= /= %= &= |= ^= <<= >>= { }"

local function is_type(t) return t and t.kind == "name" and (types[t.text] or t.text:find "^Plk?%u%l%w*$"
  or t.text:find "_t$") end

-- Is the group that ends at token i a cast?
local function is_cast(list, i)
  local t = list[i]
  if not t or t.text ~= ")" then return false end
  for k = t.match + 1, i - 1 do
    if not (is_type(list[k]) or list[k].text == "*") then return false end
  end
  return i > t.match + 1 and not (list[t.match - 1] and list[t.match - 1].text == "sizeof")
end

local function operand_ends_at(list, i)
  local t = list[i]
  if not t then return false end
  if t.kind == "number" or t.kind == "text" then return true end
  if t.kind == "name" then return not keyword[t.text] and not is_type(t) end
  if t.text == ")" then
    local before = list[t.match - 1]
    return not is_cast(list, i) and not (before and before.text:find "^[iw][fh]i?l?e?$" and keyword[before.text])
  end
  return t.text == "]" or t.text == "}" and false
end

local function binary(list, i)
  local t = list[i]
  return t.kind == "sign" and precedence[t.text] and operand_ends_at(list, i - 1) and precedence[t.text] or nil
end

local function stops(t) return t.kind == "sign" and ends[t.text] or t.kind == "name" and keyword[t.text]
  and t.text ~= "sizeof" end

local function left_of(list, i, p, floor)
  local k = i - 1
  while k >= floor do
    local t = list[k]
    if t.text == ")" or t.text == "]" or t.text == "}" and is_cast(list, t.match - 1) then
      local before = list[t.match - 1]
      if t.text == ")" and before and set "if while for switch"[before.text] then return k + 1 end
      k = t.match - 1
    elseif t.match or stops(t) then
      return k + 1
    else
      local q = binary(list, k)
      if q and q < p then return k + 1 end
      k = k - 1
    end
  end
  return floor
end

local function right_of(list, i, p, roof)
  local k = i + 1
  while k <= roof do
    local t = list[k]
    if t.text == "(" or t.text == "[" or t.text == "{" and is_cast(list, k - 1) then
      k = t.match + 1
    elseif t.match or stops(t) then
      return k - 1
    else
      local q = binary(list, k)
      if q and q <= p then return k - 1 end
      k = k + 1
    end
  end
  return roof
end

-- ---- the mutants of a region

local inverse = { ["+"] = "-", ["-"] = "+", ["*"] = "/", ["/"] = "*", ["=="] = "!=", ["!="] = "==", ["<"] = "<=",
  ["<="] = "<",
  [">"] = ">=", [">="] = ">", ["&"] = "|", ["|"] = "&" }
local opposite = { ["<"] = ">", [">"] = "<", ["<="] = ">=", [">="] = "<=" }
local other_op = { tril = "triu", triu = "tril", maximum = "minimum", minimum = "maximum", gt = "ge", ge = "gt",
  lt = "le", le = "lt",
  eq = "ne", ne = "eq", sin = "cos", cos = "sin", sinh = "cosh", cosh = "sinh", logical_or = "logical_and",
  logical_and = "logical_or", cumsum = "cumprod", sum = "mean" }
local symmetric = set "add mul maximum minimum eq ne logical_or logical_and bitwise_and bitwise_or bitwise_xor"
local sums = { g_add = "g_sub", g_mul = "g_div" }
local diffs = { g_sub = "g_add", g_div = "g_mul" }
local drops = set "g_neg pl_g_cast pl_g_sum_to pl_g_expand_like pl_g_reshape_like"
local scales = set "g_muln g_addn g_divn"

-- The arguments of the call whose "(" is token i: a list of {first, last}.
local function arguments(list, i)
  local out, from = {}, i + 1
  for k = i + 1, list[i].match do
    if (list[k].text == "," and list[k].inside == i) or k == list[i].match then
      if k > from then out[#out + 1] = { from, k - 1 } end
      from = k + 1
    end
  end
  return out
end

-- Adds mutants of tokens lo..hi. r: {text, list, edits, mutants, helpers, skip, file, func, first}
local function region(r, lo, hi, func)
  local text, list = r.text, r.list
  local function piece(a, b) return (text:sub(list[a].from, list[b].to):gsub("%s*\\?\n%s*", " ")) end
  local function new(kind, at, what, a, b)
    local key = r.file .. ":" .. func .. ":" .. kind .. ":" .. what
    r.seen[key] = (r.seen[key] or 0) + 1
    if r.seen[key] > 1 then key = key .. " #" .. r.seen[key] end
    local m = { id = r.first + #r.mutants, kind = kind, func = func, what = what, key = key, file = r.file,
      line = select(2, text:sub(1, list[at].from):gsub("\n", "\n")) + 1, a = a or at, b = b or at }
    r.mutants[#r.mutants + 1] = m
    m.dead = r.dead[m.key]
    return m.id, m
  end
  -- an edit is made of several insertions; all belong to one or more mutants and go together
  local function put(ms, from, to, parts)
    for _, m in ipairs(ms) do if m.dead then return end end
    for _, p in ipairs(parts) do
      r.edits[#r.edits + 1] = { pos = p[1], open = p[2] == "open", text = p[3], remove = p[4] or 0, size = to - from,
        order = #r.edits }
    end
  end
  local function wrap(ms, a, b, before, after)
    put(ms, list[a].from, list[b].to, { { list[a].from, "open", before }, { list[b].to + 1, "close", after } })
  end
  local function replace(ms, i, by) put(ms, list[i].from, list[i].to, { { list[i].from, "open", by,
    #list[i].text } }) end

  -- what is left alone: messages, declarators' sizes, labels
  local quiet = {}
  for i = lo, hi do
    local t = list[i]
    if t.kind == "name" and (t.text == "PL_FAIL" or t.text == "case" or t.text == "sizeof"
      or t.text == "pl_desc_text" or t.text == "enum" or t.text:find "_fail$" and t.text ~= "pl_g_fail") then
      local k = i + 1
      if list[k].text == "(" or list[k].text == "{" then for q = k, list[k].match do quiet[q] = true end
      else while list[k].text ~= ":" and list[k].text ~= ";" do quiet[k] = true; k = k + 1 end end
    end
    -- a declaration: no operator before its names, no mutant in the sizes of arrays
    if is_type(t) and list[i + 1] and (list[i + 1].kind == "name" or list[i + 1].text == "*") and not quiet[i] then
      local k, deep = i + 1, true
      while k <= hi and list[k].text ~= ";" and list[k].text ~= ")" do
        if list[k].match and list[k].match > k then
          if list[k].text == "[" and deep then for q = k, list[k].match do quiet[q] = true end end
          k = list[k].match
        elseif list[k].text == "=" then deep = false
        elseif list[k].text == "," then
          deep = true
          if list[k + 1].text == "*" then quiet[k + 1] = true end
        elseif list[k].text == "*" and (list[k - 1] == t or list[k - 1].text == "*") then quiet[k] = true end
        k = k + 1
      end
    end
  end

  local i = lo
  while i <= hi do
    local t = list[i]
    local nxt, prev = list[i + 1], list[i - 1]
    local p = not quiet[i] and binary(list, i)
    if quiet[i] then i = i + 0 -- left as it is
    elseif p and (inverse[t.text] or t.text == "&&" or t.text == "||") then
      local a, b = left_of(list, i, p, lo), right_of(list, i, p, hi)
      local from, to = list[a].from, list[b].to
      if b > i and a < i then
        if t.text == "&&" or t.text == "||" then
          local id, m = new("operator", i, piece(a, b) .. " with " .. (t.text == "&&" and "||" or "&&"), a, b)
          local cond = t.text == "&&" and "(PLM(%d) ? l_ : !l_) ? pl_mutant == %d"
            or "(PLM(%d) ? !l_ : l_) ? pl_mutant != %d"
          put({ m }, from, to, { { from, "open", "({ _Bool l_ = (" },
            { t.from, "open", "); " .. cond:format(id, id) .. " : (_Bool)(", 2 }, { to + 1, "close", "); })" } })
        else
          local id, m = new("operator", i, piece(a, b) .. " with " .. inverse[t.text], a, b)
          local ms, more = { m }, ""
          if opposite[t.text] then
            local id2, m2 = new("operator", i, piece(a, b) .. " with " .. opposite[t.text], a, b)
            ms[2] = m2
            more = ("PLM(%d) ? l_ %s r_ : "):format(id2, opposite[t.text])
          end
          put(ms, from, to, { { from, "open", "({ __auto_type l_ = (" }, { t.from, "open", "); __auto_type r_ = (",
            #t.text },
            { to + 1, "close", ("); PLM(%d) ? l_ %s r_ : %sl_ %s r_; })"):format(id, inverse[t.text], more, t.text) } })
        end
      end
    elseif t.text == "!" and t.kind == "sign" then
      local b = right_of(list, i, 11, hi)
      local id, m = new("operator", i, piece(i, b) .. " without !", i, b)
      wrap({ m }, i, b, ("(PLM(%d) ^ "):format(id), ")")
    elseif t.text == "-" and not p and nxt and nxt.text ~= "-" and (nxt.kind == "name" or nxt.kind == "number"
      or nxt.text == "(") then
      local b = right_of(list, i, 11, hi)
      local id, m = new("operator", i, piece(i, b) .. " without -", i, b)
      wrap({ m }, i, b, ("((PLM(%d) ? -1 : 1) * "):format(id), ")")
    elseif t.text == "+=" or t.text == "-=" or t.text == "*=" or t.text == "|=" then
      local b = right_of(list, i, 0, hi)
      if b > i then
        local id, m = new("operator", i, piece(left_of(list, i, 0, lo), b) .. (t.text:find "[+-]"
          and " with the other sign" or " left out"), i, b)
        local before = t.text == "*=" and "(PLM(%d) ? 1 : (" or t.text == "|=" and "(PLM(%d) ? 0 : ("
          or "((PLM(%d) ? -1 : 1) * ("
        wrap({ m }, i + 1, b, before:format(id), "))")
      end
    elseif t.kind == "number" then
      local around = prev and prev.text == "[" and nxt.text == "]" and list[list[i].inside - 1] or nil
      local what = around and around.text .. "[" .. t.text .. "]" or
        piece(math.max(lo, i - 4), math.min(hi, i + 2)) .. ": " .. t.text
      local id, m = new("number", i, what .. " + 1")
      if t.text:find "^0[xX]" then
        replace({ m }, i, ("(%s + PLM(%d))"):format(t.text, id))
      elseif t.text:find "[%.eE]" then
        local id2, m2 = new("number", i, what .. " with the other sign")
        replace({ m, m2 }, i, ("(PLM(%d) ? -%s : %s + PLM(%d))"):format(id2, t.text, t.text, id))
      elseif t.text:find "^0[uU]?$" then
        replace({ m }, i, ("(%s + PLM(%d))"):format(t.text, id))
      else
        local id2, m2 = new("number", i, what .. " - 1")
        replace({ m, m2 }, i, ("(%s + PLM(%d) - PLM(%d))"):format(t.text, id, id2))
      end
    elseif t.text == "true" or t.text == "false" then
      local id, m = new("number", i, piece(math.max(lo, i - 4), math.min(hi, i + 2)) .. ": not " .. t.text)
      replace({ m }, i, ("(%s ^ PLM(%d))"):format(t.text, id))
    elseif t.kind == "name" and t.text:find "^%u[%u%d_]*$" and prev and prev.text == "[" and nxt.text == "]" then
      local id, m = new("number", i, list[t.inside - 1].text .. "[" .. t.text .. " + 1]")
      replace({ m }, i, ("(%s + PLM(%d))"):format(t.text, id))
    elseif t.kind == "name" and t.text == "if" and nxt.text == "(" then
      local c = nxt.match
      local simple = true
      for k = i + 2, c - 1 do
        local s = list[k]
        if s.inside == i + 1 and (s.text == "!" or s.text == "&&" or s.text == "||" or (binary(list, k)
          or 99) <= 7) then simple = false end
      end
      if simple then
        local id, m = new("condition", i, "if (" .. piece(i + 2, c - 1) .. ") inverted", i + 2, c - 1)
        wrap({ m }, i + 2, c - 1, ("PLM(%d) ^ !!("):format(id), ")")
      end
    elseif t.text == "?" and t.kind == "sign" then
      local a = left_of(list, i, 0, lo)
      local simple = a < i
      for k = a, i - 1 do
        local s = list[k]
        if s.inside == t.inside and (s.text == "!" or s.text == "&&" or s.text == "||" or (binary(list, k)
          or 99) <= 7) then simple = false end
      end
      if simple then
        local id, m = new("condition", i, piece(a, i) .. " inverted", a, i - 1)
        wrap({ m }, a, i - 1, ("(PLM(%d) ^ !!("):format(id), "))")
      end
    elseif t.kind == "name" and nxt and nxt.text == "(" and not (list[i - 1] and is_type(list[i - 1])) then
      local name, args = t.text, arguments(list, i + 1)
      local shown = piece(i, nxt.match)
      local function call(macro, mutants, lead)
        local ms, id = {}, nil
        for k, what in ipairs(mutants) do
          local n, m = new("emit", i, shown .. ": " .. what, i, nxt.match)
          id, ms[k] = id or n, m
        end
        put(ms, t.from, list[nxt.match].to, { { t.from, "open", ("%s(%d, %s, %s"):format(macro, id, name, lead or ""),
          list[i + 1].to - t.from + 1 } })
      end
      local helper = r.helpers[name]
      if sums[name] and #args == 3 then
        call("PLM_SUM", { "first alone", "second alone", sums[name] }, sums[name] .. ", ")
      elseif diffs[name] and #args == 3 then
        call("PLM_DIFF", { "first alone", "second alone", diffs[name], "swapped" }, diffs[name] .. ", ")
      elseif scales[name] and #args == 3 then
        call("PLM_SCALE", { "left out", "number's sign" })
      elseif name == "g_rsubn" and #args == 3 then
        call("PLM_RSUB", { "left out", "number's sign" })
      elseif name == "g_where" and #args == 4 then
        call("PLM_WHERE", { "first alone", "second alone", "swapped" })
      elseif name == "F1" and #args == 2 then
        call("PLM_F1", { "left out" })
      elseif name == "pl_g1" and #args == 3 and not shown:find("shape_of", 1, true) then
        call("PLM_OP1", { "left out" })
      elseif name == "pl_g2" and #args == 4 then
        local op = piece(args[2][1], args[2][2]):match "pl_op_([%w_]+)"
        if symmetric[op] then call("PLM_OP2S", { "first alone", "second alone" })
        else call("PLM_OP2", { "first alone", "second alone", "swapped" }) end
      elseif drops[name] then
        call("PLM_DROP", { "left out" })
      elseif helper == 1 and #args >= 2 then
        call("PLM_DROP", { "left out" })
      elseif helper == 2 and #args >= 3 then
        call("PLM_TWO", { "first alone", "second alone", "swapped" })
      end
    elseif t.text == "&" and nxt and nxt.text:find "^pl_op_" and other_op[nxt.text:sub(7)] then
      local to = "pl_op_" .. other_op[nxt.text:sub(7)]
      local id, m = new("emit", i, "&" .. nxt.text .. " as &" .. to, i, i + 1)
      wrap({ m }, i, i + 1, ("(PLM(%d) ? &%s : "):format(id, to), ")")
    end

    -- a statement that begins here
    local begins = prev and (prev.text == ";" or prev.text == "{" or prev.text == "}" or prev.text == "else" or
      prev.text == ")" and prev.match and list[prev.match - 1] and set "if for while switch"[list[prev.match - 1].text])
    local block = t.inside and list[t.inside].text == "{"
    if begins and block and t.kind == "name" and not keyword[t.text] and not is_type(t) and t.text ~= "free" then
      local k = i
      while k <= hi and list[k].text ~= ";" and list[k].text ~= "}" do k = (list[k].match or 0) > k
        and list[k].match + 1 or k + 1 end
      if k <= hi and list[k].text == ";" then
        local id, m = new("statement", i, piece(i, k) .. " left out", i, k)
        wrap({ m }, i, k, ("{ if (!PLM(%d)) "):format(id), " }")
      end
    end
    i = i + 1
  end
end

-- Functions of a file that are no part of a gradient or shape rule.
local aside = { "flops", "batch", "_cpu$", "kernel", "bytes", "cost", "_text", "_draws", "_fail$", "arg_name" }

-- first: number of the first mutant; dead: keys of mutants that did not compile.
function M.file(text, file, first, dead)
  local list = M.tokens(text)
  local r = { text = text, list = list, edits = {}, mutants = {}, helpers = {}, file = file, first = first,
    dead = dead or {}, seen = {} }
  -- functions: NAME ( … ) { … } outside everything
  local functions, by_name = {}, {}
  for i, t in ipairs(list) do
    if not t.inside and t.text == "{" and list[i - 1].text == ")" then
      local open = list[i - 1].match
      local name = list[open - 1]
      if name and name.kind == "name" then
        local f = { name = name.text, lo = i + 1, hi = t.match - 1, static = false, calls = {} }
        local params = arguments(list, open)
        local values = 0
        for k = 2, #params do
          if list[params[k][1]].text == "PlVal" and params[k][2] == params[k][1] + 1
            and values == k - 2 then values = values + 1 end
        end
        local k = open - 2
        if list[k].text == "PlVal" and params[1]
          and list[params[1][1]].text == "PlMaker" then r.helpers[f.name] = math.min(values, 2) end
        while k > 0 and list[k].text ~= ";" and list[k].text ~= "}" and list[k].kind ~= "line" do
          f.static = f.static or list[k].text == "static"
          k = k - 1
        end
        for q = f.lo, f.hi do f.calls[list[q].text] = true end
        functions[#functions + 1] = f
        by_name[f.name] = f
      end
    end
  end
  local function is_aside(name)
    for _, pattern in ipairs(aside) do if name:find(pattern) then return true end end
    return false
  end
  -- a function is kept where it is a rule itself or something that is kept calls it
  local used = {}
  local function visit(f)
    if used[f] or is_aside(f.name) then return end
    used[f] = true
    for name in pairs(f.calls) do if by_name[name] then visit(by_name[name]) end end
  end
  for _, f in ipairs(functions) do
    if not f.static or f.name:find "grad" or f.name:find "infer" or f.name:find "bwd" or f.name:find "expand"
      or f.name:find "check" then visit(f) end
  end
  if file:find "%.h$" then for _, f in ipairs(functions) do visit(f) end end
  -- rows of macros that hold code: GRAD(name, expression), and the bodies of macros that make functions
  for i, t in ipairs(list) do
    if not t.inside and t.kind == "name" and t.text:find "^%u[%u_%d]*$" and not t.text:find "^PL_" and list[i + 1] and
      list[i + 1].text == "(" and not (list[list[i + 1].match + 1] or { text = "" }).text:find "{" then
      local code = false
      for k = i + 2, list[i + 1].match - 1 do code = code or list[k].text:find "^g_" or list[k].text:find "^pl_g"
        or list[k].text == "F1" end
      local args = arguments(list, i + 1)
      if code then
        for k, a in ipairs(args) do if k > 1 then region(r, a[1], a[2], t.text .. " " .. list[args[1][1]].text) end end
      end
      -- functions named in rows are called
      for k = i + 2, list[i + 1].match - 1 do if by_name[list[k].text] then visit(by_name[list[k].text]) end end
    elseif t.kind == "line" and t.text:find "^#%s*define" then
      for name in t.text:gmatch "[%w_]+" do if by_name[name] then visit(by_name[name]) end end
    end
  end
  for _, f in ipairs(functions) do if used[f] then region(r, f.lo, f.hi, f.name) end end
  for _, t in ipairs(list) do
    local name = t.kind == "line" and t.text:match "^#%s*define%s+([%w_]+)"
    if name and t.text:find "static PlStatus" and t.text:find("{", 1, true) then
      local inner = { text = text, list = M.tokens(text, t.from, t.to), edits = r.edits, mutants = r.mutants,
        helpers = r.helpers, file = file,
        first = first, dead = r.dead, seen = r.seen }
      local open
      for i, s in ipairs(inner.list) do if s.text == "{" and not s.inside then open = i; region(inner, i + 1,
        s.match - 1, name) end end
      if not open then error(name) end
    end
  end
  -- insertions: at one place what closes comes first, inner ones before outer; then what opens, outer ones before inner
  table.sort(r.edits, function(a, b)
    if a.pos ~= b.pos then return a.pos < b.pos end
    if a.open ~= b.open then return not a.open end
    if a.open and (a.remove > 0) ~= (b.remove > 0) then return a.remove == 0 end
    if a.size ~= b.size then
      if a.open then return a.size > b.size end
      return a.size < b.size
    end
    if a.open then return a.order > b.order end
    return a.order < b.order
  end)
  local out, at = {}, 1
  for _, e in ipairs(r.edits) do
    out[#out + 1] = text:sub(at, e.pos - 1)
    out[#out + 1] = e.text
    at = math.max(at, e.pos) + e.remove
  end
  out[#out + 1] = text:sub(at)
  return table.concat(out), r.mutants
end

return M
