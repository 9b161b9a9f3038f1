/* SPDX-License-Identifier: MIT
 * The special functions of special_formulas.h as functions of their own. */
#include "kernels/cpu/elementwise/special_functions.h"

#include "kernels/special_formulas.h"

double plk_i0(double x) { return sf_i0(x); }
double plk_i0e(double x) { return sf_i0e(x); }
double plk_i1(double x) { return sf_i1(x); }
double plk_i1e(double x) { return sf_i1e(x); }
double plk_erfcx(double x) { return sf_erfcx(x); }
double plk_ndtri(double x) { return sf_ndtri(x); }
double plk_gammainc(double a, double x) { return sf_gammainc(a, x); }
double plk_gammaincc(double a, double x) { return sf_gammaincc(a, x); }
