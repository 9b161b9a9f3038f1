-- SPDX-License-Identifier: MIT
-- f(path) with an empty folder that is gone afterwards, whatever f did.
return function(f)
  local path = os.tmpname()
  os.remove(path)
  assert(os.execute("mkdir '" .. path .. "'"))
  local ok, why = pcall(f, path)
  os.execute("rm -rf '" .. path .. "'")
  if not ok then error(why, 0) end
end
