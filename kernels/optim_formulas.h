/* SPDX-License-Identifier: MIT
 * The rules of optimizer_step, one element: x the parameter, g its gradient (its sign and a decay that goes through it are
 * applied), a, b, c and d the state, N(k) the rule's number k, F the parameter's factor, ABS, SQRT and T the element type's.
 * Expanded by kernels/cpu/isa/optim.c and kernels/cuda/optim/optim.cu, so that both compute the same:
 *   R(NAME, tensors a parameter, numbers of a call, are they settings?, columns read, columns written, sums, formula)
 * Of settings and the step plk_optim_numbers makes N; comments have both. A rule with sums gives s and t, which are added up
 * over a parameter. The order is that of optimizer_step's `rule` (engine/ops/optim.c). No include guard. */

/* Kingma & Ba 2015, section 7.1. Settings: beta1, beta2, eps. Numbers: beta1, 1 - beta1, beta2, eps, lr / (1 - beta1^t) */
R(ADAMAX, 4, 3, 1, X | G | A | B, X | A | B, 0, {
  a = a * N(0) + g * N(1);
  const T low = b * N(2);
  const T now = ABS(g) + N(3);
  b = low > now || low != low ? low : now;
  x = x - a / b * N(4);
})
/* Dozat 2016. Settings: beta1, beta2, eps, momentum_decay, and the carried product, twice. beta1, 1 - beta1, beta2, 1 - beta2,
 * 1 - beta2^t, eps, the rates of gradient and momentum */
R(NADAM, 4, 6, 1, X | G | A | B, X | A | B, 0, {
  a = a * N(0) + g * N(1);
  b = b * N(2) + g * g * N(3);
  const T under = SQRT(b / N(4)) + N(5);
  x = x - g / under * N(6);
  x = x - a / under * N(7);
})
/* Liu et al. 2020. Settings: beta1, beta2, eps. beta1, 1 - beta1, beta2, 1 - beta2, lr / (1 - beta1^t), the rectification or 0: none yet,
 * eps */
R(RADAM, 4, 3, 1, X | G | A | B, X | A | B, 0, {
  a = a * N(0) + g * N(1);
  b = b * N(2) + g * g * N(3);
  const T step = a * N(4);
  const T rectified = step * N(5) / (SQRT(b) + N(6));
  x = x - (N(5) != 0 ? rectified : step);
})
/* Duchi et al. 2011. Settings: eps, lr_decay. eps, the rate */
R(ADAGRAD, 3, 2, 1, X | G | A, X | A, 0, {
  a = a + g * g;
  x = x - g / (SQRT(a) + N(0)) * N(1);
})
/* Zeiler 2012. Settings: rho, eps. rho, 1 - rho, eps, lr */
R(ADADELTA, 4, 2, 1, X | G | A | B, X | A | B, 0, {
  a = a * N(0) + g * g * N(1);
  const T delta = SQRT(b + N(2)) / SQRT(a + N(2)) * g;
  b = b * N(0) + delta * delta * N(1);
  x = x - delta * N(3);
})
/* Polyak & Juditsky 1992. Settings: lambd, alpha, t0, and the carried eta and lr, twice. 1 - lambd eta, eta, mu */
R(ASGD, 3, 7, 1, X | G | A, X | A, 0, {
  x = x * N(0) - g * N(1);
  a = N(2) == 1 ? x : a + (x - a) * N(2);
})
/* Riedmiller & Braun 1993; a the gradient before, b the step. Settings: etas, least and largest step */
R(RPROP, 4, 4, 1, X | G | A | B, X | A | B, 0, {
  const T agree = g * a;
  const T step = b * (agree > 0 ? N(1) : agree < 0 ? N(0) : (T)1);
  b = step < N(2) ? N(2) : step > N(3) ? N(3) : step;
  a = agree < 0 ? (T)0 : g;
  x = x - ((T)(a > 0) - (T)(a < 0)) * b;
})
/* Chen et al. 2023. Settings: beta1, beta2. beta1, 1 - beta1, beta2, 1 - beta2, lr */
R(LION, 3, 2, 1, X | G | A, X | A, 0, {
  const T mix = a * N(0) + g * N(1);
  x = x - ((T)(mix > 0) - (T)(mix < 0)) * N(4);
  a = a * N(2) + g * N(3);
})
/* Defazio et al. 2024; a the second moment, b the point z that is stepped, x an average of where z was, a bit towards z. Settings: beta1,
 * beta2, eps, and what schedule_free_sgd has behind its first. beta2, 1 - beta2, 1 - beta2^t, eps, decay, the average's rate,
 * lr (beta1 (1 - that) - 1), lr */
R(SCHEDULE_FREE_ADAMW, 4, 11, 1, X | G | A | B, X | A | B, 0, {
  a = a * N(0) + g * g * N(1);
  T step = g / (SQRT(a / N(2)) + N(3));
  step = N(4) != 0 ? step + x * N(4) : step;
  x = x + (b - x) * N(5) + step * N(6);
  b = b - step * N(7);
})
/* a the point z. Settings: momentum, warmup_steps, r, weight_lr_power, and carried: steps, the sum of weights and the largest rate, with
 * this step, and the latter two without it. The average's rate, lr (momentum (1 - that) - 1), lr */
R(SCHEDULE_FREE_SGD, 3, 9, 1, X | G | A, X | A, 0, {
  x = x + (a - x) * N(0) + g * N(1);
  a = a - g * N(2);
})
/* You et al. 2020. Settings: beta1, beta2, eps, is bias corrected?, do all adapt?, the most that a factor may be. beta1, 1 - beta1, beta2,
 * 1 - beta2, 1 / (1 - beta1^t), 1 / sqrt(1 - beta2^t), eps, decay, lr, the most that a factor may be, 0: no factor. Sums: squares of parameter and step */
R(LAMB, 4, 6, 1, X | G | A | B, A | B, 1, {
  a = a * N(0) + g * N(1);
  b = b * N(2) + g * g * N(3);
  T step = a * N(4) / (SQRT(b) * N(5) + N(6));
  step = N(7) != 0 ? step + x * N(7) : step;
  s = x * x;
  t = step * step;
})
R(LAMB_APPLY, 4, 11, 0, X | A | B, X, 0, {
  T step = a * N(4) / (SQRT(b) * N(5) + N(6));
  step = N(7) != 0 ? step + x * N(7) : step;
  x = x - step * (N(8) * F);
})
/* Mishchenko & Defazio 2024; c the sum of gradients, d the parameter at first. Settings: PLK_EST_BETA1 …. beta1, d (1 - beta1),
 * beta2, d^2 (1 - beta2), beta3, the gradient's weight in c. Sums: gradient times way from the start, magnitudes of c */
R(PRODIGY, 6, 7, 1, X | G | A | B | C | D, A | B | C, 1, {
  a = a * N(0) + g * N(1);
  b = b * N(2) + g * g * N(3);
  c = c * N(4) + g * N(5);
  s = g * (d - x);
  t = ABS(c);
})
/* The step that the sums' estimate allows. Settings as above. d eps, rate */
R(PRODIGY_APPLY, 6, 9, 1, X | A | B, X, 0, { x = x - a / (SQRT(b) + N(0)) * N(1); })
/* Shazeer & Stern 2018; a and b are the inverse roots of the second moment's factors, or its own and 1, read alone: no element needs a
 * root or a quotient. Settings: eps1, eps2, d. 1 / eps1, 1 - lr decay, the rate, eps2, d. Sums: squares of parameter and step */
R(ADAFACTOR, 4, 3, 1, X | G | A | B, 0, 1, {
  const T scale = a * b;
  const T step = g * (scale > N(0) ? N(0) : scale);
  s = x * x;
  t = step * step;
})
R(ADAFACTOR_APPLY, 4, 5, 0, X | G | A | B, X, 0, {
  const T scale = a * b;
  const T step = g * (scale > N(0) ? N(0) : scale);
  x = x * N(1) - step * F;
})
/* From where schedule-free optimizers take gradients to the average, and back; a the point z. How far towards z */
R(SCHEDULE_FREE_MOVE, 3, 1, 0, X | A, X, 0, { x = x + (a - x) * N(0); })
/* Adafactor's means: x one of them, a what it moves towards. Setting: beta2_decay. 1 - t^beta2_decay, t^beta2_decay */
R(ADAFACTOR_MEAN, 3, 1, 1, X | A, X, 0, { x = x * N(0) + a * N(1); })
/* Jordan et al. 2024; a the orthogonal step. Setting: its scale. lr times that */
R(MUON, 3, 1, 1, X | A, X, 0, { x = x - a * N(0); })
