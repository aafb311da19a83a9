// What recurrent layers of all kinds share: packed weights, products with them, blocks of rows, the cell of a GRU.
#pragma once
#include <cstdlib>

#include "pool.h"
#include "product.h"

namespace regard::ISA {

constexpr int64_t PANEL = 2 * LANES;  // columns of a packed matrix that stand side by side
constexpr int64_t MOST_ROWS = 48;     // of a block
constexpr int64_t DEPTH = 256;        // of the sums of the weights' gradients, which are then added up
constexpr int64_t GATE_ROWS = 16;     // rows of a weight's gradient that a task computes; padded widths are multiples of it

struct Memory {
  float* at;
  explicit Memory(int64_t size) : at(static_cast<float*>(std::malloc(static_cast<size_t>(size) * sizeof(float)))) {
    if (at == nullptr) std::abort();
  }
  ~Memory() { std::free(at); }
  Memory(const Memory&) = delete;
};

INLINE int64_t smaller_of(int64_t x, int64_t y) { return x < y ? x : y; }

INLINE void copy(float* to, const float* from, int64_t size) {
  __builtin_memcpy(to, from, static_cast<size_t>(size) * sizeof(float));
}

INLINE void clear(float* to, int64_t size) { __builtin_memset(to, 0, static_cast<size_t>(size) * sizeof(float)); }

// Gates side by side, each with `padded` columns, those beyond the width being zeros.
struct Gates {
  int64_t count, width, padded;
  Gates(int64_t gates, int64_t own_width) : count(gates), width(own_width), padded(round_up(own_width, GATE_ROWS)) {}
  int64_t columns() const { return count * padded; }
};

// A matrix for the right side of `product`, panel by panel: (panels, depth, PANEL).
struct Packed {
  float* at;
  int64_t depth, columns;
  const float* panel(int64_t number) const { return at + number * depth * PANEL; }
  int64_t panels() const { return (columns + PANEL - 1) / PANEL; }
  int64_t size() const { return panels() * depth * PANEL; }
};

// The transpose of a weight (gates * width, depth), its columns being the padded gates.
static void pack_transposed(const Gates& s, const float* weight, const Packed& to, int64_t number) {
  float* panel = to.at + number * to.depth * PANEL;
  for (int64_t lane = 0; lane < PANEL; lane++) {
    const int64_t column = number * PANEL + lane, gate = column / s.padded, unit = column % s.padded;
    const bool real = gate < s.count && unit < s.width;
    const float* from = weight + (gate * s.width + unit) * to.depth;
    for (int64_t k = 0; k < to.depth; k++) panel[k * PANEL + lane] = real ? from[k] : 0;
  }
}

// A weight (gates * width, columns) as it is, its rows being the padded gates.
static void pack_rows(const Gates& s, const float* weight, const Packed& to, int64_t number) {
  float* panel = to.at + number * to.depth * PANEL;
  const int64_t first = number * PANEL, real = smaller_of(PANEL, to.columns - first);
  clear(panel, to.depth * PANEL);
  for (int64_t gate = 0; gate < s.count; gate++)
    for (int64_t unit = 0; unit < s.width; unit++)
      copy(panel + (gate * s.padded + unit) * PANEL, weight + (gate * s.width + unit) * to.columns + first, real);
}

// A matrix whose rows are `stride` apart.
static void pack_matrix(const float* from, int64_t stride, const Packed& to, int64_t number) {
  float* panel = to.at + number * to.depth * PANEL;
  const int64_t first = number * PANEL, real = smaller_of(PANEL, to.columns - first);
  for (int64_t k = 0; k < to.depth; k++, panel += PANEL) {
    copy(panel, from + k * stride + first, real);
    clear(panel + real, PANEL - real);
  }
}

// out (rows, panels * PANEL) = a · packed, or += if ADD.
template <bool ADD>
static void multiply(float* out, int64_t out_row, View a, const Packed& b, int64_t rows) {
  for (int64_t panel = 0; panel < b.panels(); panel++)
    product<ADD>(out + panel * PANEL, out_row, a, b.panel(panel), PANEL, rows, PANEL, b.depth);
}

static void pad_gates(const Gates& s, const float* from, float* to) {
  clear(to, s.columns());
  for (int64_t gate = 0; gate < s.count; gate++) copy(to + gate * s.padded, from + gate * s.width, s.width);
}

INLINE int64_t weight_scratch(int64_t columns) { return GATE_ROWS * (round_up(columns, PANEL) + 1 + DEPTH); }

// Up to GATE_ROWS rows of a weight's gradient Σ gᵀ x over all positions, and of its bias unless null. The records of the
// gradients g are `stride` apart. scratch: of weight_scratch(x.columns) numbers.
static void weight_rows(const float* gradients, int64_t stride, const Packed& x, int64_t rows, float* scratch, float* out, float* bias) {
  const int64_t columns = x.panels() * PANEL;
  float *sum = scratch, *bias_sum = sum + GATE_ROWS * columns, *g = bias_sum + GATE_ROWS;
  clear(sum, GATE_ROWS * (columns + 1));
  for (int64_t first = 0; first < x.depth; first += DEPTH) {
    const int64_t depth = smaller_of(DEPTH, x.depth - first);
    float part[GATE_ROWS] = {0};
    for (int64_t k = 0; k < depth; k++) {
      copy(g + k * GATE_ROWS, gradients + (first + k) * stride, GATE_ROWS);
      for (int64_t row = 0; row < GATE_ROWS; row++) part[row] += g[k * GATE_ROWS + row];
    }
    for (int64_t row = 0; row < GATE_ROWS; row++) bias_sum[row] += part[row];
    for (int64_t panel = 0; panel < x.panels(); panel++)
      product<true>(sum + panel * PANEL, columns, {g, 1, GATE_ROWS}, x.panel(panel) + first * PANEL, PANEL, rows, PANEL, depth);
  }
  for (int64_t row = 0; row < rows; row++) copy(out + row * x.columns, sum + row * columns, x.columns);
  if (bias != nullptr) copy(bias, bias_sum, rows);
}

// The rows of a direction, divided into equal blocks, at least one for each thread.
struct Blocks {
  int64_t each, count;

  Blocks(int64_t rows, int64_t directions) {
    const int64_t wanted = (threads() + directions - 1) / directions, needed = (rows + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t blocks = needed > wanted ? needed : wanted;
    each = round_up((rows + blocks - 1) / blocks, 6);
    count = (rows + each - 1) / each;
  }
};

// --- the cell of a GRU ---------------------------------------------------------------------------------------------------

// What one row needs for one step. hidden: U h. The record holds W x, which the gates replace; the new state replaces h.
struct Step {
  const float *hidden, *bias, *hidden_bias;
  float *record, *h;
  int64_t padded;
};

static void gru_forward(const Step& s) {
  const int64_t P = s.padded;
  for (int64_t i = 0; i < P; i += LANES) {
    Vec gate[2];
    for (int64_t g = 0; g < 2; g++)
      gate[g] = sigmoid((load(s.record + g * P + i) + load(s.bias + g * P + i)) +
                        (load(s.hidden + g * P + i) + load(s.hidden_bias + g * P + i)));
    const Vec hidden = load(s.hidden + 2 * P + i) + load(s.hidden_bias + 2 * P + i), h = load(s.h + i);
    const Vec n = hyperbolic_tangent(load(s.record + 2 * P + i) + load(s.bias + 2 * P + i) + gate[0] * hidden);
    store(s.record + i, gate[0]);
    store(s.record + P + i, gate[1]);
    store(s.record + 2 * P + i, n);
    store(s.record + 3 * P + i, hidden);
    store(s.record + 4 * P + i, h);
    store(s.h + i, n + gate[1] * (h - n));
  }
}

// h: the gradient of the state after the step; then the part of that before it that does not flow through U.
// hidden: the gradient of U h; gradient: that of W x and, for a GRU, in a fourth part what its n has in `hidden`.
struct Back {
  const float* record;
  float *h, *hidden, *gradient;
  int64_t padded;
};

static void gru_backward(const Back& b) {
  const int64_t P = b.padded;
  for (int64_t i = 0; i < P; i += LANES) {
    const Vec r = load(b.record + i), z = load(b.record + P + i), n = load(b.record + 2 * P + i);
    const Vec hidden = load(b.record + 3 * P + i), before = load(b.record + 4 * P + i), dh = load(b.h + i);
    const Vec dn = dh * (1.0f - z) * (1.0f - n * n), dhidden = dn * r;
    const Vec dr = dn * hidden * r * (1.0f - r), dz = dh * (before - n) * z * (1.0f - z);
    const Vec parts[4] = {dr, dz, dn, dhidden};
    for (int64_t part = 0; part < 4; part++) store(b.gradient + part * P + i, parts[part]);
    store(b.hidden + i, dr);
    store(b.hidden + P + i, dz);
    store(b.hidden + 2 * P + i, dhidden);
    store(b.h + i, dh * z);
  }
}

}  // namespace regard::ISA
