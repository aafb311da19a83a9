// The matrix product of the native engine. Each number is a sum over k in ascending order that begins with the bias, whatever
// the shape of the tile that computes it.
#pragma once
#include "engine_kernels.h"
#include "simd.h"

namespace regard::ISA {

// erf(x): Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
INLINE Vec error_function(Vec x) {
  const Vec size = absolute(x), t = 1.0f / (size * 0.3275911f + 1.0f);
  Vec y = t * 1.061405429f - 1.453152027f;
  y = y * t + 1.421413741f;
  y = y * t - 0.284496736f;
  y = (y * t + 0.254829592f) * t;
  const Vec value = 1.0f - y * exponential(-(size * size));
  return (Vec)((Bits)value | ((Bits)x & 0x80000000u));
}

INLINE Vec activated(Vec x, Activation activation) {
  switch (activation) {
    case RELU: return x < 0 ? same(0) : x;  // NaN stays NaN
    case GELU: return x * 0.5f * (error_function(x * 0.70710678f) + 1.0f);
    case GELU_TANH: return x * 0.5f * (hyperbolic_tangent((x * x * x * 0.044715f + x) * 0.79788456f) + 1.0f);
    case SILU: return x * sigmoid(x);
    default: return x;
  }
}

// Stores the columns of a vector that exist.
INLINE void store_some(float* to, Vec x, int64_t columns) {
  if (columns >= LANES) {
    store(to, x);
  } else {
    for (int64_t lane = 0; lane < columns; lane++) to[lane] = x[lane];
  }
}

INLINE Vec load_some(const float* from, int64_t columns) {
  if (columns >= LANES) return load(from);
  Vec x = same(0);
  for (int64_t lane = 0; lane < columns; lane++) x[lane] = from[lane];
  return x;
}

template <int ROWS, int PANELS>
INLINE void product_tile(const Packed& matrix, const Product& p, int64_t row, int64_t panel) {
  constexpr int PARTS = PANELS * 2;
  const int64_t depth = matrix.inputs;
  const float* x = p.x + row * p.x_row;
  const float* w = matrix.panels + panel * depth * PANEL;
  Vec sum[ROWS][PARTS];
#pragma GCC unroll 8
  for (int part = 0; part < PARTS; part++) {
    const Vec bias = load(matrix.bias + panel * PANEL + part * LANES);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) sum[r][part] = bias;
  }
  for (int64_t k = 0; k < depth; k++) {
    Vec column[PARTS];
#pragma GCC unroll 8
    for (int part = 0; part < PARTS; part++)
      column[part] = load(w + (part / 2 * depth + k) * PANEL + part % 2 * LANES);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      const Vec value = same(x[r * p.x_row + k]);
#pragma GCC unroll 8
      for (int part = 0; part < PARTS; part++) sum[r][part] += value * column[part];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int part = 0; part < PARTS; part++) {
      const int64_t first = panel * PANEL + part * LANES, columns = matrix.outputs - first;
      if (columns <= 0) continue;
      float* to = p.out + (row + r) * p.out_row + first;
      const Vec y = activated(sum[r][part], p.activation);
      store_some(to, p.adds ? load_some(to, columns) + y : y, columns);
    }
}

template <int ROWS, int PANELS>
static void product_rows_of(const Packed& matrix, const Product& p, int64_t row, int64_t panel, int64_t panel_end) {
  for (; panel + PANELS <= panel_end; panel += PANELS) product_tile<ROWS, PANELS>(matrix, p, row, panel);
  for (; panel < panel_end; panel++) product_tile<ROWS, 1>(matrix, p, row, panel);
}

constexpr int64_t ROW_BLOCK = 96;  // rows of x that stay in the cache while the panels pass by

static void product(const Packed& matrix, const Product& p, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
  for (; row + 6 <= row_end;) {
    const int64_t left = (row_end - row) / 6 * 6, end = row + (left < ROW_BLOCK ? left : ROW_BLOCK);
    for (int64_t number = panel; number < panel_end; number++)
      for (int64_t r = row; r < end; r += 6) product_tile<6, 1>(matrix, p, r, number);
    row = end;
  }
  switch (row_end - row) {  // tiles of five rows, and of three rows and two panels, would not fit the registers
    case 5:
      product_rows_of<4, 1>(matrix, p, row, panel, panel_end);
      return product_rows_of<1, 4>(matrix, p, row + 4, panel, panel_end);
    case 4: return product_rows_of<4, 1>(matrix, p, row, panel, panel_end);
    case 3: return product_rows_of<3, 1>(matrix, p, row, panel, panel_end);
    case 2: return product_rows_of<2, 2>(matrix, p, row, panel, panel_end);
    case 1: return product_rows_of<1, 4>(matrix, p, row, panel, panel_end);
  }
}

}  // namespace regard::ISA
