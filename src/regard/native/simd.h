// Vectors of eight floats, or sixteen, from the compiler's own extension: the same source gives AVX-512, AVX2 and portable code.
// Everything is static, so that nothing is shared between instruction sets.
#pragma once
#include <cstdint>

namespace regard::ISA {

// A file that defines REGARD_WIDE before it includes this one gets as many floats as a register holds; others get eight.
#if defined(__AVX512F__) && defined(REGARD_WIDE)
constexpr int64_t LANES = 16;
#else
constexpr int64_t LANES = 8;
#endif
typedef float Vec __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef uint32_t Bits __attribute__((vector_size(LANES * sizeof(uint32_t))));

#define INLINE static inline __attribute__((always_inline))

INLINE Vec load(const float* from) {
  Vec x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

INLINE void store(float* to, Vec x) { __builtin_memcpy(to, &x, sizeof x); }

INLINE Vec same(float x) { return x - Vec{}; }

INLINE Vec larger(Vec x, Vec y) { return x > y ? x : y; }

INLINE Vec smaller(Vec x, Vec y) { return x < y ? x : y; }

// The order of this sum is fixed, so that a result depends on its numbers alone.
INLINE float total(Vec x) {
  float part[LANES];
  store(part, x);
  for (int64_t half = LANES / 2; half >= 4; half /= 2)
    for (int64_t lane = 0; lane < half; lane++) part[lane] += part[lane + half];
  return (part[0] + part[1]) + (part[2] + part[3]);
}

INLINE float largest(Vec x) {
  float found = x[0];
  for (int lane = 1; lane < LANES; lane++) found = x[lane] > found ? x[lane] : found;
  return found;
}

INLINE Vec absolute(Vec x) { return (Vec)((Bits)x & 0x7fffffffu); }

// e^x with a relative error below 2e-7 (Cephes); 0 below -87, and e^88 above 88.
INLINE Vec exponential(Vec x) {
  const Vec clamped = smaller(same(88.0f), larger(same(-87.3f), x));  // NaN stays NaN
  const Vec scaled = clamped * 1.44269504f;
  const Ints power = __builtin_convertvector(scaled + (scaled < 0 ? same(-0.5f) : same(0.5f)), Ints);
  const Vec whole = __builtin_convertvector(power, Vec);
  const Vec r = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vec y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const Vec result = (Vec)((Ints)y + (power << 23));
  return x < -87.3f ? same(0.0f) : result;
}

INLINE Vec hyperbolic_tangent(Vec x) {
  const Vec t = exponential(absolute(x) * -2.0f), y = (1.0f - t) / (1.0f + t);
  return (Vec)((Bits)y | ((Bits)x & 0x80000000u));
}

INLINE Vec sigmoid(Vec x) {
  const Vec t = exponential(-absolute(x)), small = t / (1.0f + t);  // of -|x|
  return x < 0 ? small : 1.0f - small;
}

INLINE int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

}  // namespace regard::ISA
