-- SPDX-License-Identifier: MIT
-- What masks select, of sizes and shares of trues around the eight bytes that kernels look at together, by hand in Lua.

local T = require "perilune"

it("masked_select, masked_scatter, their gradients and nonzero take the places of trues, in order", function()
  T.manual_seed(5)
  local shapes = { { 0 }, { 1 }, { 7 }, { 8 }, { 9 }, { 64 }, { 3, 8 }, { 5, 13 }, { 2, 3, 17 }, { 2, 2, 2, 9 } }
  for _, shape in ipairs(shapes) do
    for _, share in ipairs { 0, 0.03, 0.5, 0.97, 1 } do
      local mask = T.rand(shape):lt(share)
      local trues, n = {}, mask:numel()
      for i, on in ipairs(mask:view(-1):totable()) do if on then trues[#trues + 1] = i end end
      local text = ("%s %g"):format(table.concat(shape, ","), share)
      for _, dtype in ipairs { "u8", "bf16", "f32", "f64" } do
        local x = T.arange(1, n):remainder(100):to(dtype):view(shape)
        local src, flat = T.full({ #trues }, 100):add(T.arange(1, #trues)):to(dtype), x:view(-1):totable()
        local given = src:totable()
        local picked, written = {}, x:view(-1):totable()
        for k, i in ipairs(trues) do picked[k], written[i] = flat[i], given[k] end
        assert.same(picked, x:masked_select(mask):totable(), text)
        assert.same(written, x:masked_scatter(mask, src):view(-1):totable(), text)
        if dtype ~= "u8" then
          x:requires_grad_()
          src:requires_grad_()
          x:masked_select(mask):sum():backward()
          assert.is_true(x.grad:equal(mask:to(dtype)), text)
          x.grad = nil
          x:masked_scatter(mask, src):mul(x:detach()):sum():backward()
          assert.same(picked, src.grad:totable(), text)
        end
      end
      local places = {}
      for k, i in ipairs(trues) do
        local rest, row = i - 1, {}
        for d = #shape, 1, -1 do row[d], rest = rest % shape[d] + 1, rest // shape[d] end
        places[k] = row
      end
      assert.same({ #trues, #shape }, mask:nonzero():shape(), text)
      if #trues > 0 then assert.same(places, mask:nonzero():totable(), text) end
      assert.equal(#trues, T.count_nonzero(mask):item(), text)
    end
  end
end)
