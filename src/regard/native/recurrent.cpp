// Whole sequences of GRUs and plain cells in one call, forward and backward, in one or two directions.
//
// Products with the inputs are computed for all positions at once. The recurrence runs block of rows by block of rows through all
// steps, so threads never wait for each other. Every sum has an order that depends on the sizes of the layer and on the sequence
// alone: results depend neither on the number of threads, nor, except for the gradients of weights, on the other rows.
//
// Inside, every gate has `padded` columns, those beyond the width being zeros. `kept` has one record per row and position: the
// gates, what else the backward pass needs, and the state before the step.
#define REGARD_WIDE
#include "kernels.h"
#include "packed.h"

namespace regard::ISA {
namespace {

enum Cell { GRU, TANH, RELU, SIGMOID };

struct Sizes {
  int64_t cell, positions, padded, record, parts;
  Gates gates;

  explicit Sizes(const regard_recurrent& p)
      : cell(p.cell), positions(p.rows * p.steps), padded(round_up(p.width, GATE_ROWS)), gates(p.cell == GRU ? 3 : 1, p.width) {
    parts = cell == GRU ? 4 : 1;              // of the gradients of a position
    record = (cell == GRU ? 5 : 2) * padded;  // the last part is the state before the step
  }
  int64_t previous() const { return record - padded; }
  int64_t gradient() const { return parts * padded; }
};

// The position that a direction reads at a step: direction 1 reads the first `length` positions in reverse, then the others.
INLINE int64_t position(const regard_recurrent& p, int64_t direction, int64_t row, int64_t step) {
  const int64_t length = direction == 0 || p.lengths == nullptr ? 0 : p.lengths[row];
  return row * p.steps + (step < length ? length - 1 - step : step);
}

// --- the cells -----------------------------------------------------------------------------------------------------------

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

// Arrays of a block, in the scratch memory of a thread.
struct Block {
  int64_t direction, first, rows, stride, wide;
  float *h, *hidden;

  Block(const regard_recurrent& p, const Sizes& s, const Blocks& blocks, int64_t number)
      : direction(number / blocks.count),
        first(number % blocks.count * blocks.each),
        rows(smaller_of(blocks.each, p.rows - first)),
        stride(round_up(s.padded, PANEL)),
        wide(round_up(s.gates.columns(), PANEL)) {
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

INLINE int64_t state_at(const regard_recurrent& p, int64_t direction, int64_t slot) {
  return (slot * p.directions + direction) * p.width;
}

void run_block(const regard_recurrent& p, const Sizes& s, const Packed& recurrent, const float* biases, const Block& b) {
  b.read(p, p.first);
  for (int64_t step = 0; step < p.steps; step++) {
    multiply<false>(b.hidden, b.wide, {b.h, b.stride, 1}, recurrent, b.rows);
    for (int64_t row = 0; row < b.rows; row++) {
      const int64_t slot = position(p, b.direction, b.first + row, step);
      float *h = b.h + row * b.stride, *record = p.kept + (b.direction * s.positions + slot) * s.record;
      forward_step(s.cell, {b.hidden + row * b.wide, biases, biases + s.gates.columns(), record, h, s.padded});
      copy(p.states + state_at(p, b.direction, slot), h, p.width);
    }
  }
  b.write(p, p.last);
}

void run_back(const regard_recurrent& p, const Sizes& s, const Packed& recurrent, float* gradients, const Block& b) {
  b.read(p, p.last_gradient);
  for (int64_t step = p.steps - 1; step >= 0; step--) {
    for (int64_t row = 0; row < b.rows; row++) {
      const int64_t slot = position(p, b.direction, b.first + row, step);
      float* h = b.h + row * b.stride;
      const float* upstream = p.states_gradient + state_at(p, b.direction, slot);
      for (int64_t i = 0; i < p.width; i++) h[i] += upstream[i];
      const int64_t at = b.direction * s.positions + slot;
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

void weight_gradients(const regard_recurrent& p, const Sizes& s, const float* gradients, const Packed& input, const Packed* before) {
  const int64_t tiles = s.padded / GATE_ROWS, most = input.columns > p.width ? input.columns : p.width;
  parallel(p.directions * s.parts * tiles * 2, [&](int64_t number) {
    const bool recurrent = number % 2;
    const int64_t unit = number / 2 % tiles * GATE_ROWS, part = number / 2 / tiles % s.parts;
    const int64_t direction = number / 2 / tiles / s.parts, gate = gate_of(s, part, recurrent);
    if (gate < 0 || unit >= p.width) return;
    const float* own = gradients + direction * s.positions * s.gradient() + part * s.padded + unit;
    float* memory = scratch(weight_scratch(most));
    const int64_t row = (direction * s.gates.count + gate) * p.width + unit, rows = smaller_of(GATE_ROWS, p.width - unit);
    if (recurrent) {
      weight_rows(own, s.gradient(), before[direction], rows, memory, p.recurrent_gradient + row * p.width, p.recurrent_bias_gradient + row);
    } else {
      weight_rows(own, s.gradient(), input, rows, memory, p.weight_gradient + row * p.input_width, p.bias_gradient + row);
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
  const int64_t columns = s.gates.columns(), directions = p.directions;
  Packed weight[2] = {{nullptr, p.input_width, columns}, {}}, recurrent[2] = {{nullptr, p.width, columns}, {}};
  const Memory memory(directions * (weight->size() + recurrent->size() + 2 * columns));
  float* biases = memory.at + directions * (weight->size() + recurrent->size());
  for (int64_t direction = directions - 1; direction >= 0; direction--) {
    weight[direction] = {memory.at + direction * weight->size(), p.input_width, columns};
    recurrent[direction] = {memory.at + directions * weight->size() + direction * recurrent->size(), p.width, columns};
    float* own = biases + direction * 2 * columns;
    pad_gates(s.gates, p.bias + direction * s.gates.count * p.width, own);
    pad_gates(s.gates, p.recurrent_bias + direction * s.gates.count * p.width, own + columns);
  }
  const int64_t panels = weight->panels();
  parallel(directions * panels * 2, [&](int64_t number) {
    const int64_t direction = number / 2 / panels, panel = number / 2 % panels, size = s.gates.count * p.width;
    if (number % 2) {
      pack_transposed(s.gates, p.recurrent + direction * size * p.width, recurrent[direction], panel);
    } else {
      pack_transposed(s.gates, p.weight + direction * size * p.input_width, weight[direction], panel);
    }
  });
  const int64_t chunks = (s.positions + MOST_ROWS - 1) / MOST_ROWS;
  parallel(directions * chunks, [&](int64_t number) {
    const int64_t direction = number / chunks, first = number % chunks * MOST_ROWS;
    multiply<false>(p.kept + (direction * s.positions + first) * s.record, s.record, {p.input + first * p.input_width, p.input_width, 1},
                    weight[direction], smaller_of(MOST_ROWS, s.positions - first));
  });
  const Blocks blocks(p.rows, p.directions);
  parallel(directions * blocks.count, [&](int64_t number) {
    const Block block(p, s, blocks, number);
    run_block(p, s, recurrent[block.direction], biases + block.direction * 2 * columns, block);
  });
}

static void recurrent_backward(const regard_recurrent& p) {
  const Sizes s(p);
  const int64_t columns = s.gates.columns(), directions = p.directions, size = s.gates.count * p.width;
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
      pack_rows(s.gates, p.weight + direction * size * p.input_width, weight[direction], job);
    } else if (job < of_input + of_state) {
      pack_rows(s.gates, p.recurrent + direction * size * p.width, recurrent[direction], job - of_input);
    } else {
      const float* kept = p.kept + direction * s.positions * s.record + s.previous();
      pack_matrix(kept, s.record, before[direction], job - of_input - of_state);
    }
  });
  const Blocks blocks(p.rows, p.directions);
  parallel(directions * blocks.count, [&](int64_t number) {
    const Block block(p, s, blocks, number);
    run_back(p, s, recurrent[block.direction], gradients, block);
  });
  weight_gradients(p, s, gradients, input, before);
  input_gradients(p, s, gradients, weight);
}

extern const Recurrent recurrent_kernels = {recurrent_forward, recurrent_backward};

}  // namespace regard::ISA
