// Small matrix products on padded rows.
#pragma once
#include "simd.h"

namespace regard::ISA {

INLINE float inner_product(const float* x, const float* y, int64_t size) {
  Vec sum = same(0);
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) sum += load(x + i) * load(y + i);
  float all = total(sum);
  for (; i < size; i++) all += x[i] * y[i];
  return all;
}

// A matrix whose entry (row, column) is at[row * rows + column * columns].
struct View {
  const float* at;
  int64_t rows, columns;
};

template <int ROWS, bool ADD>
INLINE void product_rows(float* out, int64_t out_row, View a, const float* b, int64_t b_row, int64_t depth) {
  Vec sum[ROWS][2];
  for (int row = 0; row < ROWS; row++)
    for (int part = 0; part < 2; part++) sum[row][part] = ADD ? load(out + row * out_row + part * LANES) : same(0);
  for (int64_t k = 0; k < depth; k++) {
    const Vec left = load(b + k * b_row), right = load(b + k * b_row + LANES);
#pragma GCC unroll 6
    for (int row = 0; row < ROWS; row++) {
      const Vec x = same(a.at[row * a.rows + k * a.columns]);
      sum[row][0] += x * left;
      sum[row][1] += x * right;
    }
  }
  for (int row = 0; row < ROWS; row++)
    for (int part = 0; part < 2; part++) store(out + row * out_row + part * LANES, sum[row][part]);
}

// out (rows, columns) = a (rows, depth) · b (depth, columns), or += if ADD. `columns` is a multiple of 2 * LANES.
template <bool ADD>
static void product(float* out, int64_t out_row, View a, const float* b, int64_t b_row, int64_t rows, int64_t columns,
                    int64_t depth) {
  for (int64_t column = 0; column < columns; column += 2 * LANES) {
    int64_t row = 0;
    for (; row + 6 <= rows; row += 6)
      product_rows<6, ADD>(out + row * out_row + column, out_row, {a.at + row * a.rows, a.rows, a.columns}, b + column, b_row,
                           depth);
    for (; row + 2 <= rows; row += 2)
      product_rows<2, ADD>(out + row * out_row + column, out_row, {a.at + row * a.rows, a.rows, a.columns}, b + column, b_row,
                           depth);
    for (; row < rows; row++)
      product_rows<1, ADD>(out + row * out_row + column, out_row, {a.at + row * a.rows, a.rows, a.columns}, b + column, b_row,
                           depth);
  }
}

}  // namespace regard::ISA
