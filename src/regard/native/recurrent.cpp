// Whole sequences of GRUs and plain cells in one call, forward and backward, in one or two directions.
//
// Products with the inputs are computed for all positions at once. The recurrence runs block of rows by block of rows through all
// steps, so threads never wait for each other. Every sum has an order that depends on the sizes of the layer and on the sequence
// alone: results depend neither on the number of threads, nor, except for the gradients of weights, on the other rows.
//
// Inside, every gate has `padded` columns, those beyond the width being zeros. `kept` has one record per row and position: the
// gates, what else the backward pass needs, and the state before the step.
#include <cstdlib>

#include "kernels.h"
#include "pool.h"
#include "product.h"

namespace regard::ISA {
namespace {

constexpr int64_t PANEL = 2 * LANES;  // columns of a packed matrix that stand side by side
constexpr int64_t MOST_ROWS = 48;     // of a block
constexpr int64_t DEPTH = 256;        // of the sums of the weights' gradients, which are then added up
constexpr int64_t GATE_ROWS = 16;     // rows of a weight's gradient that a task computes

enum Cell { GRU, TANH, RELU, SIGMOID };

struct Sizes {
  int64_t cell, positions, gates, padded, record, parts;

  explicit Sizes(const regard_recurrent& p) : cell(p.cell), positions(p.rows * p.steps), padded(round_up(p.width, 16)) {
    gates = cell == GRU ? 3 : 1;
    parts = cell == GRU ? 4 : 1;               // of the gradients of a position
    record = (cell == GRU ? 5 : 2) * padded;  // the last part is the state before the step
  }
  int64_t gate_columns() const { return gates * padded; }
  int64_t previous() const { return record - padded; }
  int64_t gradient() const { return parts * padded; }
};

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

// The position that a direction reads at a step: direction 1 reads the first `length` positions in reverse, then the others.
INLINE int64_t position(const regard_recurrent& p, int64_t direction, int64_t row, int64_t step) {
  const int64_t length = direction == 0 || p.lengths == nullptr ? 0 : p.lengths[row];
  return row * p.steps + (step < length ? length - 1 - step : step);
}

// --- packed matrices -----------------------------------------------------------------------------------------------------

// A matrix for the right side of `product`, panel by panel: (panels, depth, PANEL).
struct Packed {
  float* at;
  int64_t depth, columns;
  const float* panel(int64_t number) const { return at + number * depth * PANEL; }
  int64_t panels() const { return (columns + PANEL - 1) / PANEL; }
  int64_t size() const { return panels() * depth * PANEL; }
};

// The transpose of a weight (gates * width, depth), its columns being the padded gates.
void pack_transposed(const regard_recurrent& p, const Sizes& s, const float* weight, const Packed& to, int64_t number) {
  float* panel = to.at + number * to.depth * PANEL;
  for (int64_t lane = 0; lane < PANEL; lane++) {
    const int64_t column = number * PANEL + lane, gate = column / s.padded, unit = column % s.padded;
    const bool real = gate < s.gates && unit < p.width;
    const float* from = weight + (gate * p.width + unit) * to.depth;
    for (int64_t k = 0; k < to.depth; k++) panel[k * PANEL + lane] = real ? from[k] : 0;
  }
}

// A weight (gates * width, columns) as it is, its rows being the padded gates.
void pack_rows(const regard_recurrent& p, const Sizes& s, const float* weight, const Packed& to, int64_t number) {
  float* panel = to.at + number * to.depth * PANEL;
  const int64_t first = number * PANEL, real = smaller_of(PANEL, to.columns - first);
  clear(panel, to.depth * PANEL);
  for (int64_t gate = 0; gate < s.gates; gate++)
    for (int64_t unit = 0; unit < p.width; unit++)
      copy(panel + (gate * s.padded + unit) * PANEL, weight + (gate * p.width + unit) * to.columns + first, real);
}

// A matrix whose rows are `stride` apart.
void pack_matrix(const float* from, int64_t stride, const Packed& to, int64_t number) {
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

void pad_gates(const regard_recurrent& p, const Sizes& s, const float* from, float* to) {
  clear(to, s.gate_columns());
  for (int64_t gate = 0; gate < s.gates; gate++) copy(to + gate * s.padded, from + gate * p.width, p.width);
}

// --- the cells -----------------------------------------------------------------------------------------------------------

// What one row needs for one step. hidden: U h. The record holds W x, which the gates replace; the new state replaces h.
struct Step {
  const float *hidden, *bias, *hidden_bias;
  float *record, *h;
  int64_t padded;
};

void gru_forward(const Step& s) {
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

template <int CELL>
static void plain_forward(const Step& s) {
  for (int64_t i = 0; i < s.padded; i += LANES) {
    const Vec x = load(s.record + i) + load(s.bias + i) + load(s.hidden + i) + load(s.hidden_bias + i);
    const Vec y = CELL == TANH ? hyperbolic_tangent(x) : CELL == RELU ? (x < 0 ? same(0) : x) : sigmoid(x);
    store(s.record + i, y);
    store(s.record + s.padded + i, load(s.h + i));
    store(s.h + i, y);
  }
}

void forward_step(int64_t cell, const Step& step) {
  switch (cell) {
    case GRU: return gru_forward(step);
    case TANH: return plain_forward<TANH>(step);
    case RELU: return plain_forward<RELU>(step);
    default: return plain_forward<SIGMOID>(step);
  }
}

// h: the gradient of the state after the step; then the part of that before it that does not flow through U.
// hidden: the gradient of U h; gradient: that of W x and, for a GRU, in a fourth part what its n has in `hidden`.
struct Back {
  const float* record;
  float *h, *hidden, *gradient;
  int64_t padded;
};

void gru_backward(const Back& b) {
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

template <int CELL>
static void plain_backward(const Back& b) {
  for (int64_t i = 0; i < b.padded; i += LANES) {
    const Vec y = load(b.record + i), dh = load(b.h + i);
    const Vec d = CELL == TANH ? dh * (1.0f - y * y) : CELL == RELU ? (y > 0 ? dh : same(0)) : dh * y * (1.0f - y);
    store(b.gradient + i, d);
    store(b.hidden + i, d);
    store(b.h + i, same(0));
  }
}

void backward_step(int64_t cell, const Back& back) {
  switch (cell) {
    case GRU: return gru_backward(back);
    case TANH: return plain_backward<TANH>(back);
    case RELU: return plain_backward<RELU>(back);
    default: return plain_backward<SIGMOID>(back);
  }
}

// --- blocks of rows ------------------------------------------------------------------------------------------------------

// The rows of one direction, divided into equal blocks, at least one for each thread.
struct Blocks {
  int64_t each, count;

  explicit Blocks(const regard_recurrent& p) {
    const int64_t wanted = (threads() + p.directions - 1) / p.directions, needed = (p.rows + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t blocks = needed > wanted ? needed : wanted;
    each = round_up((p.rows + blocks - 1) / blocks, 6);
    count = (p.rows + each - 1) / each;
  }
};

// Arrays of a block, in the scratch memory of a thread.
struct Block {
  int64_t direction, first, rows, stride, wide;
  float *h, *hidden;

  Block(const regard_recurrent& p, const Sizes& s, const Blocks& blocks, int64_t number)
      : direction(number / blocks.count),
        first(number % blocks.count * blocks.each),
        rows(smaller_of(blocks.each, p.rows - first)),
        stride(round_up(s.padded, PANEL)),
        wide(round_up(s.gate_columns(), PANEL)) {
    h = scratch(blocks.each * (stride + wide));
    hidden = h + blocks.each * stride;
    clear(h, blocks.each * stride);
  }

  void read(const regard_recurrent& p, const float* states) const {  // (directions, rows, width)
    for (int64_t row = 0; row < rows; row++) copy(h + row * stride, states + (direction * p.rows + first + row) * p.width, p.width);
  }
  void write(const regard_recurrent& p, float* states) const {
    for (int64_t row = 0; row < rows; row++) copy(states + (direction * p.rows + first + row) * p.width, h + row * stride, p.width);
  }
};

INLINE int64_t state_at(const regard_recurrent& p, int64_t direction, int64_t place) {
  return (place * p.directions + direction) * p.width;
}

void run_block(const regard_recurrent& p, const Sizes& s, const Packed& recurrent, const float* biases, const Block& b) {
  b.read(p, p.first);
  for (int64_t step = 0; step < p.steps; step++) {
    multiply<false>(b.hidden, b.wide, {b.h, b.stride, 1}, recurrent, b.rows);
    for (int64_t row = 0; row < b.rows; row++) {
      const int64_t place = position(p, b.direction, b.first + row, step);
      float *h = b.h + row * b.stride, *record = p.kept + (b.direction * s.positions + place) * s.record;
      forward_step(s.cell, {b.hidden + row * b.wide, biases, biases + s.gate_columns(), record, h, s.padded});
      copy(p.states + state_at(p, b.direction, place), h, p.width);
    }
  }
  b.write(p, p.last);
}

void run_back(const regard_recurrent& p, const Sizes& s, const Packed& recurrent, float* gradients, const Block& b) {
  b.read(p, p.last_gradient);
  for (int64_t step = p.steps - 1; step >= 0; step--) {
    for (int64_t row = 0; row < b.rows; row++) {
      const int64_t place = position(p, b.direction, b.first + row, step);
      float* h = b.h + row * b.stride;
      const float* upstream = p.states_gradient + state_at(p, b.direction, place);
      for (int64_t i = 0; i < p.width; i++) h[i] += upstream[i];
      const int64_t at = b.direction * s.positions + place;
      backward_step(s.cell, {p.kept + at * s.record, h, b.hidden + row * b.wide, gradients + at * s.gradient(), s.padded});
    }
    multiply<true>(b.h, b.stride, {b.hidden, b.wide, 1}, recurrent, b.rows);
  }
  b.write(p, p.first_gradient);
}

// --- gradients of weights and inputs -------------------------------------------------------------------------------------

// The gate whose W, or whose U, gets its gradient from this part of the gradients of a position; −1: none.
int64_t gate_of(const Sizes& s, int64_t part, bool recurrent) {
  if (s.cell != GRU) return part;
  if (recurrent) return part == 2 ? -1 : part == 3 ? 2 : part;
  return part == 3 ? -1 : part;
}

// Up to GATE_ROWS rows of a weight's gradient Σ gᵀ x over all positions, and of its bias.
void weight_rows(const Sizes& s, const float* gradients, const Packed& x, int64_t rows, float* scratch,
                 float* out, float* bias) {
  const int64_t columns = x.panels() * PANEL;
  float *sum = scratch, *bias_sum = sum + GATE_ROWS * columns, *g = bias_sum + GATE_ROWS;
  clear(sum, GATE_ROWS * (columns + 1));
  for (int64_t first = 0; first < s.positions; first += DEPTH) {
    const int64_t depth = smaller_of(DEPTH, s.positions - first);
    float part[GATE_ROWS] = {0};
    for (int64_t k = 0; k < depth; k++) {
      copy(g + k * GATE_ROWS, gradients + (first + k) * s.gradient(), GATE_ROWS);
      for (int64_t row = 0; row < GATE_ROWS; row++) part[row] += g[k * GATE_ROWS + row];
    }
    for (int64_t row = 0; row < GATE_ROWS; row++) bias_sum[row] += part[row];
    for (int64_t panel = 0; panel < x.panels(); panel++)
      product<true>(sum + panel * PANEL, columns, {g, 1, GATE_ROWS}, x.panel(panel) + first * PANEL, PANEL, rows, PANEL, depth);
  }
  for (int64_t row = 0; row < rows; row++) copy(out + row * x.columns, sum + row * columns, x.columns);
  copy(bias, bias_sum, rows);
}

void weight_gradients(const regard_recurrent& p, const Sizes& s, const float* gradients, const Packed& input, const Packed* before) {
  const int64_t tiles = s.padded / GATE_ROWS, most = input.columns > p.width ? input.columns : p.width;
  parallel(p.directions * s.parts * tiles * 2, [&](int64_t number) {
    const bool recurrent = number % 2;
    const int64_t unit = number / 2 % tiles * GATE_ROWS, part = number / 2 / tiles % s.parts;
    const int64_t direction = number / 2 / tiles / s.parts, gate = gate_of(s, part, recurrent);
    if (gate < 0 || unit >= p.width) return;
    const float* own = gradients + direction * s.positions * s.gradient() + part * s.padded + unit;
    float* memory = scratch(GATE_ROWS * (round_up(most, PANEL) + 1 + DEPTH));
    const int64_t row = (direction * s.gates + gate) * p.width + unit, rows = smaller_of(GATE_ROWS, p.width - unit);
    if (recurrent) {
      weight_rows(s, own, before[direction], rows, memory, p.recurrent_gradient + row * p.width, p.recurrent_bias_gradient + row);
    } else {
      weight_rows(s, own, input, rows, memory, p.weight_gradient + row * p.input_width, p.bias_gradient + row);
    }
  });
}

void input_gradients(const regard_recurrent& p, const Sizes& s, const float* gradients, const Packed* weights) {
  parallel((s.positions + MOST_ROWS - 1) / MOST_ROWS, [&](int64_t number) {
    const int64_t first = number * MOST_ROWS, rows = smaller_of(MOST_ROWS, s.positions - first);
    const int64_t columns = weights->panels() * PANEL;
    float* out = scratch(MOST_ROWS * columns);
    clear(out, MOST_ROWS * columns);
    for (int64_t direction = 0; direction < p.directions; direction++)
      multiply<true>(out, columns, {gradients + (direction * s.positions + first) * s.gradient(), s.gradient(), 1},
                     weights[direction], rows);
    for (int64_t row = 0; row < rows; row++) copy(p.input_gradient + (first + row) * p.input_width, out + row * columns, p.input_width);
  });
}

}  // namespace

// --- the kernels ---------------------------------------------------------------------------------------------------------

static void recurrent_forward(const regard_recurrent& p) {
  const Sizes s(p);
  const int64_t columns = s.gate_columns(), directions = p.directions;
  Packed weight[2] = {{nullptr, p.input_width, columns}, {}}, recurrent[2] = {{nullptr, p.width, columns}, {}};
  const Memory memory(directions * (weight->size() + recurrent->size() + 2 * columns));
  float* biases = memory.at + directions * (weight->size() + recurrent->size());
  for (int64_t direction = directions - 1; direction >= 0; direction--) {
    weight[direction] = {memory.at + direction * weight->size(), p.input_width, columns};
    recurrent[direction] = {memory.at + directions * weight->size() + direction * recurrent->size(), p.width, columns};
    float* own = biases + direction * 2 * columns;
    pad_gates(p, s, p.bias + direction * s.gates * p.width, own);
    pad_gates(p, s, p.recurrent_bias + direction * s.gates * p.width, own + columns);
  }
  const int64_t panels = weight->panels();
  parallel(directions * panels * 2, [&](int64_t number) {
    const int64_t direction = number / 2 / panels, panel = number / 2 % panels, size = s.gates * p.width;
    if (number % 2) {
      pack_transposed(p, s, p.recurrent + direction * size * p.width, recurrent[direction], panel);
    } else {
      pack_transposed(p, s, p.weight + direction * size * p.input_width, weight[direction], panel);
    }
  });
  const int64_t chunks = (s.positions + MOST_ROWS - 1) / MOST_ROWS;
  parallel(directions * chunks, [&](int64_t number) {
    const int64_t direction = number / chunks, first = number % chunks * MOST_ROWS;
    multiply<false>(p.kept + (direction * s.positions + first) * s.record, s.record, {p.input + first * p.input_width, p.input_width, 1},
                    weight[direction], smaller_of(MOST_ROWS, s.positions - first));
  });
  const Blocks blocks(p);
  parallel(directions * blocks.count, [&](int64_t number) {
    const Block block(p, s, blocks, number);
    run_block(p, s, recurrent[block.direction], biases + block.direction * 2 * columns, block);
  });
}

static void recurrent_backward(const regard_recurrent& p) {
  const Sizes s(p);
  const int64_t columns = s.gate_columns(), directions = p.directions, size = s.gates * p.width;
  Packed weight[2] = {{nullptr, columns, p.input_width}, {}}, recurrent[2] = {{nullptr, columns, p.width}, {}};
  Packed before[2] = {{nullptr, s.positions, p.width}, {}}, input = {nullptr, s.positions, p.input_width};
  const int64_t each = weight->size() + recurrent->size() + before->size();
  const Memory memory(directions * (each + s.positions * s.gradient()) + input.size());
  for (int64_t direction = directions - 1; direction >= 0; direction--) {
    float* own = memory.at + direction * each;
    const int64_t after_weight = weight->size(), after_recurrent = after_weight + recurrent->size();
    weight[direction] = {own, columns, p.input_width};
    recurrent[direction] = {own + after_weight, columns, p.width};
    before[direction] = {own + after_recurrent, s.positions, p.width};
  }
  input.at = memory.at + directions * each;
  float* gradients = input.at + input.size();
  const int64_t of_input = input.panels(), of_state = before->panels();
  parallel(directions * (of_input + 2 * of_state) + of_input, [&](int64_t number) {
    const int64_t direction = number / (of_input + 2 * of_state), job = number % (of_input + 2 * of_state);
    if (direction == directions) {
      pack_matrix(p.input, p.input_width, input, job);
    } else if (job < of_input) {
      pack_rows(p, s, p.weight + direction * size * p.input_width, weight[direction], job);
    } else if (job < of_input + of_state) {
      pack_rows(p, s, p.recurrent + direction * size * p.width, recurrent[direction], job - of_input);
    } else {
      const float* kept = p.kept + direction * s.positions * s.record + s.previous();
      pack_matrix(kept, s.record, before[direction], job - of_input - of_state);
    }
  });
  const Blocks blocks(p);
  parallel(directions * blocks.count, [&](int64_t number) {
    const Block block(p, s, blocks, number);
    run_back(p, s, recurrent[block.direction], gradients, block);
  });
  weight_gradients(p, s, gradients, input, before);
  input_gradients(p, s, gradients, weight);
}

extern const Recurrent recurrent_kernels = {recurrent_forward, recurrent_backward};

}  // namespace regard::ISA
