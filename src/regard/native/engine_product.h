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

// As many columns as one register holds. Sixteen at a time give the same bits as twice eight.
#ifdef __AVX512F__
typedef float Column __attribute__((vector_size(PANEL * sizeof(float))));
#else
typedef Vec Column;
#endif
constexpr int64_t WIDTH = sizeof(Column) / sizeof(float);
constexpr int PER_PANEL = PANEL / WIDTH;

INLINE Column load_column(const float* from) {
  Column x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

// Stores one row of a panel, as far as its columns exist.
INLINE void finish(const Packed& matrix, const Product& p, int64_t row, int64_t panel, const Column* sums) {
  float all[PANEL];
  __builtin_memcpy(all, sums, sizeof all);
  float* to = p.out + row * p.out_row + panel * PANEL;
  for (int64_t first = 0; first < PANEL; first += LANES) {
    const int64_t columns = matrix.outputs - panel * PANEL - first;
    if (columns <= 0) return;
    const Vec y = activated(load(all + first), p.activation);
    store_some(to + first, p.adds ? load_some(to + first, columns) + y : y, columns);
  }
}

template <int ROWS, int PANELS>
INLINE void product_tile(const Packed& matrix, const Product& p, int64_t row, int64_t panel) {
  constexpr int PARTS = PANELS * PER_PANEL;
  const int64_t depth = matrix.inputs;
  const float* x = p.x + row * p.x_row;
  const float* w = matrix.panels + panel * depth * PANEL;
  Column sum[ROWS][PARTS];
#pragma GCC unroll 8
  for (int part = 0; part < PARTS; part++) {
    const Column bias = load_column(matrix.bias + panel * PANEL + part * WIDTH);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) sum[r][part] = bias;
  }
  for (int64_t k = 0; k < depth; k++) {
    Column column[PARTS];
#pragma GCC unroll 8
    for (int part = 0; part < PARTS; part++)
      column[part] = load_column(w + (part / PER_PANEL * depth + k) * PANEL + part % PER_PANEL * WIDTH);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      const float value = x[r * p.x_row + k];
#pragma GCC unroll 8
      for (int part = 0; part < PARTS; part++) sum[r][part] += value * column[part];
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int number = 0; number < PANELS; number++)
      finish(matrix, p, row + r, panel + number, sum[r] + number * PER_PANEL);
}

template <int ROWS, int PANELS>
static void product_rows_of(const Packed& matrix, const Product& p, int64_t row, int64_t row_end, int64_t panel,
                            int64_t panel_end) {
  for (; panel + PANELS <= panel_end; panel += PANELS)
    for (int64_t r = row; r < row_end; r += ROWS) product_tile<ROWS, PANELS>(matrix, p, r, panel);
  for (; panel < panel_end; panel++)
    for (int64_t r = row; r < row_end; r += ROWS) product_tile<ROWS, 1>(matrix, p, r, panel);
}

constexpr int64_t ROW_BLOCK = 96;  // rows of x that stay in the cache while the panels pass by

// The tiles that fit the registers: 16 of eight numbers, or 32 of sixteen.
#ifdef __AVX512F__
constexpr int PANELS_OF_1 = 8, PANELS_OF_2 = 4, PANELS_OF_MORE = 2;
#else
constexpr int PANELS_OF_1 = 4, PANELS_OF_2 = 2, PANELS_OF_MORE = 1;
#endif

static void product(const Packed& matrix, const Product& p, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end) {
  while (row + 6 <= row_end) {
    const int64_t left = (row_end - row) / 6 * 6, end = row + (left < ROW_BLOCK ? left : ROW_BLOCK);
    product_rows_of<6, PANELS_OF_MORE>(matrix, p, row, end, panel, panel_end);
    row = end;
  }
#ifdef __AVX512F__
  if (row + 5 == row_end) return product_rows_of<5, PANELS_OF_MORE>(matrix, p, row, row_end, panel, panel_end);
#endif
  if (row + 4 <= row_end) {  // five are four and one where tiles of five do not fit the registers
    product_rows_of<4, PANELS_OF_MORE>(matrix, p, row, row + 4, panel, panel_end);
    row += 4;
  }
  switch (row_end - row) {
    case 3: return product_rows_of<3, PANELS_OF_MORE>(matrix, p, row, row_end, panel, panel_end);
    case 2: return product_rows_of<2, PANELS_OF_2>(matrix, p, row, row_end, panel, panel_end);
    case 1: return product_rows_of<1, PANELS_OF_1>(matrix, p, row, row_end, panel, panel_end);
  }
}

}  // namespace regard::ISA
