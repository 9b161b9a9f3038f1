-- SPDX-License-Identifier: MIT
-- What T.help knows of functions that are no ops, continued from symbols.lua: those of tensor/conveniences.lua.
local S = {}

-- ---- limits and angles ------------------------------------------------------------------------------------

S.clip = { "T.clip(x, min?, max?) → tensor", "T.clamp under its other name: x limited to [min, max].", [[
print(T.tensor { 1, 5 }:clip(2, 3))  --> {2., 3.}  -- f32[2] cpu]], same = "clamp" }
S.clip_ = { "T.clip_(x, min?, max?) → x", "T.clamp_ under its other name: limits x in place.", [[
print(T.tensor { 1, 5 }:clip_(2, 3))  --> {2., 3.}  -- f32[2] cpu]], same = "clamp_" }
S.clamp_min = { "T.clamp_min(x, lo) → tensor", "The larger of x and lo, a number or a tensor.", [[
print(T.tensor { 1, 5 }:clamp_min(2))  --> {2., 5.}  -- f32[2] cpu]] }
S.clamp_max = { "T.clamp_max(x, hi) → tensor", "The smaller of x and hi, a number or a tensor.", [[
print(T.tensor { 1, 5 }:clamp_max(2))  --> {1., 2.}  -- f32[2] cpu]] }
S.deg2rad = { "T.deg2rad(x) → tensor", "Degrees to radians: x · π/180.", [[
print(T.tensor { 180 }:deg2rad())  --> {3.1416}  -- f32[1] cpu]] }
S.rad2deg = { "T.rad2deg(x) → tensor", "Radians to degrees: x · 180/π.", [[
print(T.tensor { 0 }:rad2deg())  --> {0.}  -- f32[1] cpu]] }

-- ---- shapes -----------------------------------------------------------------------------------------------

S.ravel = { "T.ravel(x) → tensor", "All elements in one dimension; a view where the layout allows it.", [[
print(T.ones(2, 3):ravel():size(1))  --> 6]] }
S.moveaxis = { "T.moveaxis(x, from, to) → view", "T.movedim under its other name.", [[
print(T.zeros(1, 2, 3):moveaxis(1, -1):size(3))  --> 1]], same = "movedim" }
S.swapaxes = { "T.swapaxes(x, a, b) → view", "T.transpose under its other name.", [[
print(T.zeros(2, 3):swapaxes(1, 2):size(1))  --> 3]], same = "transpose" }
S.fliplr = { "T.fliplr(x) → tensor", "Columns (dimension 2) in reverse order.", [[
print(T.tensor { { 1, 2 } }:fliplr())  --> {{2., 1.}}  -- f32[1,2] cpu]] }
S.flipud = { "T.flipud(x) → tensor", "Rows (dimension 1) in reverse order.", [[
print(T.tensor { 1, 2 }:flipud())  --> {2., 1.}  -- f32[2] cpu]] }
S.atleast_1d = { "T.atleast_1d(x) → tensor", "A 0-d tensor as a vector of one; others unchanged.", [[
print(T.tensor(3):atleast_1d())  --> {3.}  -- f32[1] cpu]] }
S.atleast_2d = { "T.atleast_2d(x) → tensor", "A number or vector as a matrix of one row; others unchanged.", [[
print(T.tensor { 3, 4 }:atleast_2d())  --> {{3., 4.}}  -- f32[1,2] cpu]] }
S.column_stack = { "T.column_stack{x, …} → tensor", "Side by side: vectors become columns, matrices stay.", [[
print(T.column_stack { T.tensor { 1, 2 }, T.tensor { 3, 4 } }[1])  --> {1., 3.}  -- f32[2] cpu]] }
S.broadcast_tensors = { "T.broadcast_tensors{x, …} → list", "Views of one common shape.", [[
print(T.broadcast_tensors { T.ones(2, 1), T.zeros(3) }[1]:size(2))  --> 3]] }
S.block_diag = { "T.block_diag{a, …} → tensor",
  "Matrices along the diagonal of one, zeros elsewhere. Vectors count as rows.", [[
print(T.block_diag { T.tensor { 1 }, T.tensor { 2, 3 } }[2])  --> {0., 2., 3.}  -- f32[3] cpu]] }

-- ---- reductions -------------------------------------------------------------------------------------------

S.argwhere = { "T.argwhere(x) → i64 [n, dims]", "Places of what is not zero, one a row.", [[
print(T.tensor { 0, 7 }:argwhere())  --> {{2}}  -- i64[1,1] cpu]] }
S.nanmean = { "T.nanmean(x, dim?, {keepdim=false}) → tensor", "Mean of what is not NaN.", [[
print(T.tensor { 1, 0 / 0, 3 }:nanmean():item())  --> 2.0]] }
S.dist = { "T.dist(x, y, p=2) → 0-d tensor", "The p-norm of x - y.", [[
print(T.tensor { 3, 0 }:dist(T.tensor { 0, 4 }):item())  --> 5.0]] }

return S
