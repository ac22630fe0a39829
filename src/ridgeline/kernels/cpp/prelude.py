"""The C++ every generated kernel starts with: conversions and branch-free float32 functions.

Each function is written so that the compiler vectorises the loop around it; errors are a few ulp at most
(`tests/kernels/test_cpp_math.py`). float64 goes to libm.
"""

from __future__ import annotations

PRELUDE = r"""
#define FN static inline __attribute__((always_inline, unused))
typedef long long i64;
typedef unsigned int u32;

FN float rl_from_bf16(unsigned short x) { return __builtin_bit_cast(float, (u32)x << 16); }
FN unsigned short rl_to_bf16(float x) {
  u32 u = __builtin_bit_cast(u32, x);
  u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (unsigned short)(x != x ? 0x7fc0u : rounded);
}
// x = n ln 2 + f with f near zero; the low bits of t hold n
FN float rl_reduced(float x, float& t) {
  t = x * 1.442695f + 12582912.0f;
  float n = t - 12582912.0f;
  float f = x - n * 6.93145752e-1f;
  return f - n * 1.42860677e-6f;
}
FN float rl_exp_series(float f) {
  float r = 1.37805939e-3f;
  r = r * f + 8.37312452e-3f;
  r = r * f + 4.16695364e-2f;
  r = r * f + 1.66664720e-1f;
  r = r * f + 4.99999851e-1f;
  r = r * f + 1.0f;
  r = r * f + 1.0f;
  return r;
}
FN float rl_exp(float x) {
  // past these ends the result is 0 or inf; a NaN fails both tests and stays
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  float t, f = rl_reduced(x, t);
  float r = rl_exp_series(f);
  // two factors, so that subnormal results and the step to inf come out right
  int i = __builtin_bit_cast(int, t) - 0x4b400000;
  int half = i >> 1;
  float a = __builtin_bit_cast(float, (u32)(half + 127) << 23);
  float b = __builtin_bit_cast(float, (u32)(i - half + 127) << 23);
  return r * a * b;
}
FN double rl_exp(double x) { return __builtin_exp(x); }
// for x <= 88 where results below the normal range may be 0: one factor instead of two
FN float rl_exp_low(float x) {
  float t, f = rl_reduced(x, t);
  float r = rl_exp_series(f);
  r = r * __builtin_bit_cast(float, (__builtin_bit_cast(u32, t) << 23) + 0x3f800000u);
  return x < -87.3f ? 0.0f : r;
}
FN double rl_exp_low(double x) { return __builtin_exp(x); }
FN float rl_expm1(float x) {
  float low = x < -40.0f ? -40.0f : x;
  low = low > 88.0f ? 88.0f : low;
  float t, f = rl_reduced(low, t);
  float r = 1.98412698e-4f;
  r = r * f + 1.38888889e-3f;
  r = r * f + 8.33333333e-3f;
  r = r * f + 4.16666667e-2f;
  r = r * f + 1.66666667e-1f;
  r = r * f + 0.5f;
  r = r * (f * f) + f;
  float scale = __builtin_bit_cast(float, (u32)(__builtin_bit_cast(int, t) - 0x4b400000 + 127) << 23);
  float y = r * scale + (scale - 1.0f);
  return x > 88.0f ? rl_exp(x) : y;
}
FN double rl_expm1(double x) { return __builtin_expm1(x); }
FN float rl_log(float x) {
  bool tiny = x < 1.175494351e-38f;
  float a = tiny ? x * 8388608.0f : x;
  u32 e = (__builtin_bit_cast(u32, a) - 0x3f2aaaabu) & 0xff800000u;
  float m = __builtin_bit_cast(float, __builtin_bit_cast(u32, a) - e);
  float i = (float)(int)e * 1.19209290e-7f + (tiny ? -23.0f : 0.0f);
  float f = m - 1.0f;
  float s = f * f;
  float r = -0.130187988f * f + 0.140889585f;
  float t = -0.121489584f * f + 0.139809534f;
  r = r * s + t;
  r = r * f - 0.166845024f;
  r = r * f + 0.200121149f;
  r = r * f - 0.249996364f;
  r = r * f + 0.333331943f;
  r = r * f - 0.5f;
  r = r * s + f;
  r = i * 0.693147182f + r;
  r = x < __builtin_inff() ? r : x;
  r = x == 0.0f ? -__builtin_inff() : r;
  return x < 0.0f ? __builtin_nanf("") : r;
}
FN double rl_log(double x) { return __builtin_log(x); }
FN float rl_log1p(float x) {
  float w = 1.0f + x;
  return rl_log(w) + (x - (w - 1.0f)) / w;
}
FN double rl_log1p(double x) { return __builtin_log1p(x); }
FN float rl_erf(float x) {
  float t = __builtin_fabsf(x);
  float s = x * x;
  float r = -1.72853470e-5f * t + 3.83197126e-4f;
  float u = -3.88396438e-3f * t + 2.42546219e-2f;
  r = r * s + u;
  r = r * t - 1.06777877e-1f;
  r = r * t - 6.34846687e-1f;
  r = r * t - 1.28717512e-1f;
  r = r * t - t;
  float far = __builtin_copysignf(1.0f - rl_exp_low(r), x);
  float p = -5.96761703e-4f;
  p = p * s + 4.99119423e-3f;
  p = p * s - 2.67681349e-2f;
  p = p * s + 1.12819925e-1f;
  p = p * s - 3.76125336e-1f;
  p = p * s + 1.28379166e-1f;
  float near = p * x + x;
  return t > 0.927734375f ? far : near;
}
FN double rl_erf(double x) { return __builtin_erf(x); }
FN float rl_tanh(float x) {
  float t = __builtin_fabsf(x);
  float far = rl_exp_low(-2.0f * t);
  far = __builtin_copysignf((1.0f - far) / (1.0f + far), x);
  float s = x * x;
  float p = 1.57394409e-2f;
  p = p * s - 5.23025580e-2f;
  p = p * s + 1.33152470e-1f;
  p = p * s - 3.33327681e-1f;
  float near = (p * s) * x + x;
  return t >= 0.55f ? far : near;
}
FN double rl_tanh(double x) { return __builtin_tanh(x); }
FN float rl_gelu_half(float x) { return 0.5f * x * (1.0f + rl_erf(x * 0.70710678f)); }
FN float rl_gelu_tanh_half(float x) {
  return 0.5f * x * (1.0f + rl_tanh(0.79788456f * (x + 0.044715f * x * x * x)));
}
FN float rl_sigmoid_half(float x) { return 1.0f / (1.0f + rl_exp(-x)); }
#define RL_LIBM(name, call) \
  FN float rl_##name(float x) { return __builtin_##call##f(x); } \
  FN double rl_##name(double x) { return __builtin_##call(x); }
RL_LIBM(sqrt, sqrt) RL_LIBM(sin, sin) RL_LIBM(cos, cos)
RL_LIBM(floor, floor) RL_LIBM(ceil, ceil) RL_LIBM(round, rint)
FN float rl_pow(float x, float y) { return __builtin_powf(x, y); }
FN double rl_pow(double x, double y) { return __builtin_pow(x, y); }
template <class A, class B> FN auto rl_where(bool test, A a, B b) { return test ? a : b; }
FN bool rl_not(bool x) { return !x; }
// a NaN on either side stays
template <class T> FN T rl_max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> FN T rl_min(T a, T b) { return a < b || a != a ? a : b; }
template <class T> FN T rl_relu(T x) { return x < 0 ? (T)0 : x; }
template <class T> FN T rl_abs(T x) { return x < 0 ? -x : x; }
FN float rl_abs(float x) { return __builtin_fabsf(x); }
FN double rl_abs(double x) { return __builtin_fabs(x); }
template <class T> FN T rl_sign(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : x; }
// C leaves NaN and what the type does not hold open, and vectors differ from scalars there: this is what
// ONNX Runtime and numpy make of them
template <class T> FN unsigned rl_to_uint32(T x) { return (unsigned)x; }
FN unsigned rl_to_uint32(double x) {
  return x >= 2147483648.0 ? (unsigned)(int)(x - 2147483648.0) ^ 0x80000000u : (unsigned)(int)x;
}
FN unsigned rl_to_uint32(float x) { return rl_to_uint32((double)x); }
template <class T> FN unsigned long long rl_to_uint64(T x) { return (unsigned long long)x; }
FN unsigned long long rl_to_uint64(double x) {
  const double middle = 9223372036854775808.0;
  return x >= middle ? (unsigned long long)(i64)(x - middle) ^ (1ULL << 63) : (unsigned long long)(i64)x;
}
FN unsigned long long rl_to_uint64(float x) { return rl_to_uint64((double)x); }
FN float rl_div(float x, float y) { return x / y; }
FN float rl_levels(float x, float y) { return x / y; }
FN float rl_over_power(float x, float y) { return x * (1.0f / y); }
FN float rl_for_float8(float x, float most) { return rl_max(-most, rl_min(most, x)); }
// a NaN fails the first test
FN int rl_codes(float x, float zero, float least, float most) {
  float level = rl_round(x) + zero;
  level = level >= least ? level : least;
  return (int)(level <= most ? level : most);
}
FN double rl_div(double x, double y) { return x / y; }
// the processor traps on these two
template <class T> FN T rl_div(T x, T y) {
  return y == 0 ? (T)0 : (T)-1 < (T)0 && y == (T)-1 ? (T)(0 - x) : (T)(x / y);
}
FN float rl_fmod(float x, float y) { return __builtin_fmodf(x, y); }
FN double rl_fmod(double x, double y) { return __builtin_fmod(x, y); }
template <class T> FN T rl_fmod(T x, T y) {
  return y == 0 || ((T)-1 < (T)0 && y == (T)-1) ? (T)0 : (T)(x % y);
}
template <class T> FN T rl_mod(T x, T y) {
  T r = rl_fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? (T)(r + y) : r;
}
"""
