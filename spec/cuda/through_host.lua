-- SPDX-License-Identifier: MIT
-- Ops that run on the CPU for tensors on the device, with copies there and back and one warning.
-- conv_tail is made in graphs of the CPU alone.
-- `skip`: rows that cannot be compared between devices, with the reason.
local M = { list = {}, skip = {} }
for name in ([=[
    linalg.inv linalg.solve linalg.solve_triangular linalg.det
    linalg.slogdet linalg.cofactor linalg.cofactor_bwd linalg.cholesky linalg.qr linalg.svd linalg.svdvals
    linalg.eigh linalg.eigvalsh linalg.pinv linalg.lu_factor linalg.eig matrix_exp
    grid_sample_bwd linalg.pivoted_cholesky linalg.geqrf multinomial_alias_setup quantize_blocks
    int8_conv2d conv_tail
    mse_loss_dual l1_loss_dual smooth_l1_loss_dual huber_loss_dual prod_tangent extreme_tangent
]=]):gmatch("%S+") do M.list[name] = true end
return M
