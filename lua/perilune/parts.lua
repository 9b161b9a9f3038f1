-- SPDX-License-Identifier: MIT
-- What init.lua loads at first use: each part with the names that it defines, in T and as methods of tensors.
-- spec/lua/parts_spec.lua compares with what they do define.
return {
  ["tensor.aliases"] = {
    [[
    absolute absolute_ arccos arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan2 arctan2_
    arctan_ arctanh arctanh_ concatenate detach divide divide_ equal finfo fix fix_ ger get_default_dtype greater
    greater_equal iinfo is_floating_point is_nonzero is_same_size is_signed less less_equal multiply multiply_
    negative negative_ nelement not_equal numel positive result_type row_stack set_default_dtype sgn sgn_
    subtract subtract_ swapdims true_divide true_divide_ vdot ]],
    [[
    absolute absolute_ addbmm_ addmm_ addmv_ addr_ arccos arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_
    arctan arctan2 arctan2_ arctan_ arctanh arctanh_ baddbmm_ cumprod_ cumsum_ divide divide_ eq_ fix fix_ ge_ ger
    greater greater_ greater_equal greater_equal_ gt_ index_put index_put_ is_nonzero is_same_size is_signed le_ less
    less_ less_equal less_equal_ logical_and_ logical_not_ logical_or_ logical_xor_ lt_ multiply multiply_ ndimension
    ne_ negative negative_ nelement not_equal not_equal_ positive sgn sgn_ subtract subtract_ swapdims tolist
    true_divide true_divide_ vdot where ]],
  },
  ["tensor.rearrange"] = {
    [[
    as_tensor asarray atleast_3d broadcast_shapes cartesian_prod combinations diagflat diagonal_scatter dsplit
    dstack hsplit index_reduce msort put randint_like scalar_tensor select_scatter slice_scatter sum_to_size
    hstack meshgrid pixel_shuffle pixel_unshuffle rot90 rows tensor_split unique_consecutive unravel_index vander
    vsplit vstack ]],
    [[
    apply_ atleast_3d combinations diagflat diagonal_scatter dsplit hsplit index_reduce map_ msort put put_
    pixel_shuffle pixel_unshuffle rot90 rows select_scatter slice_scatter sum_to_size tensor_split
    unique_consecutive unravel_index vander vsplit ]],
  },
  ["device.cuda"] = { [[ cuda get_default_device set_default_device ]], "" },
  ["autograd.checkpoint"] = {
    "checkpoint checkpoint_name",
    "",
  },
  ["tensor.conveniences"] = {
    [[
    allclose aminmax argwhere atleast_1d atleast_2d bernoulli_ block_diag broadcast_tensors clamp_max
    clamp_max_ clamp_min clamp_min_ clip clip_ column_stack deg2rad deg2rad_ dist exponential_ fliplr flipud
    isclose moveaxis nanmean normal_ rad2deg rad2deg_ random_ ravel rsub std_mean swapaxes uniform_ var_mean ]],
    [[
    allclose aminmax argwhere atleast_1d atleast_2d bernoulli_ clamp_max clamp_max_ clamp_min clamp_min_
    clip clip_ deg2rad deg2rad_ dist exponential_ fill_diagonal_ fliplr flipud isclose moveaxis nanmean
    new_empty new_full new_ones new_tensor new_zeros normal_ rad2deg rad2deg_ random_ ravel std_mean
    swapaxes uniform_ var_mean ]],
  },
  ["math.distance"] = {
    "cdist channel_shuffle diff pairwise_distance tril_indices triu_indices",
    "cdist channel_shuffle diff pairwise_distance",
  },
  ["math.einsum"] = {
    "einsum tensordot",
    "",
  },
  ["autograd.functional"] = {
    "grad hessian jacobian value_and_grad vjp",
    "",
  },
  ["autograd.forward_mode"] = {
    "hvp jvp linearize",
    "",
  },
  ["autograd.gradcheck"] = {
    "anomaly gradcheck gradgradcheck",
    "",
  },
  help = {
    "help help_text info",
    "",
  },
  linalg = {
    [[
    chain_matmul cholesky cholesky_inverse cholesky_solve cross det inverse linalg logdet lu_unpack matrix_power
    pca_lowrank pinverse qr slogdet svd svd_lowrank ]],
    [[
    cholesky cholesky_inverse cholesky_solve cross det inverse logdet lu_unpack matrix_power pca_lowrank
    pinverse qr slogdet svd svd_lowrank ]],
  },
  ["tensor.print"] = { "set_printoptions", "brief tostring" },
  ["autograd.grad_manager"] = {
    "GradManager",
    "",
  },
  ["autograd.memory_limit"] = { [[ memory_limit ]], "" },
  ["autograd.saved_tensors"] = { [[ saved_tensors ]], "" },
  ["math.special"] = {
    [[
    bartlett_window binomial blackman_window entr float_power frexp hamming_window hann_window heaviside igamma
    igammac isneginf isposinf isreal kaiser_window ldexp log_ndtr logaddexp2 mvlgamma ndtr poisson special
    xlog1py ]],
    [[
    binomial cauchy_ entr float_power frexp geometric_ heaviside igamma igammac isneginf isposinf isreal ldexp
    log_ndtr log_normal_ logaddexp2 mvlgamma ndtr poisson xlog1py ]],
  },
  ["math.statistics"] = {
    [[
    corrcoef cov cumulative_trapezoid gradient histc histogram nanmedian nanquantile pdist quantile renorm
    trapezoid trapz ]],
    [[
    corrcoef cov cumulative_trapezoid gradient histc histogram nanmedian nanquantile pdist quantile renorm
    renorm_ trapezoid ]],
  },
  ["autograd.vmap"] = {
    "grad_of vmap",
    "",
  },
}
