// The decoder of Bahdanau et al. (2015) over whole sequences in one call, forward and backward. At each step of a GRU
//
//     weights = softmax over j of Σ_a v_a tanh((W_q h)_a + key_ja)    context = Σ_j weights_j value_j
//     h = GRU(h, input + W_c context)
//
// Blocks of rows run through all steps without waiting for each other. As in recurrent.cpp, results depend neither on the number of
// threads, nor, except for the gradients of weights, on the other rows.
//
// `kept` has one record per row and step: gates, U h of the new state, the state before the step (see gru_forward) and W_q h.
#define REGARD_WIDE
#include "kernels.h"
#include "packed.h"

namespace regard::ISA {
namespace {

struct Sizes {
  int64_t positions, padded, scores, keys, record, gradient, memory;
  Gates gates, query;

  explicit Sizes(const regard_bahdanau& p) : positions(p.rows * p.steps), gates(3, p.width), query(1, p.score_width) {
    padded = gates.padded;
    scores = query.padded;
    keys = round_up(p.num_keys, LANES);
    record = 5 * padded + scores;
    gradient = 4 * padded + scores;  // of r, z, n and U h of n; of W_q h
    memory = round_up(p.memory_width, PANEL);
  }
};

// The packed weights of one direction of time.
struct Weights {
  Packed context, recurrent, query;
  Weights(int64_t context_depth, int64_t context_columns, int64_t depth, int64_t columns, int64_t query_depth, int64_t query_columns)
      : context{nullptr, context_depth, context_columns}, recurrent{nullptr, depth, columns}, query{nullptr, query_depth, query_columns} {}
  int64_t size() const { return context.size() + recurrent.size() + query.size(); }
  void lay_out(float* at) {
    context.at = at;
    recurrent.at = context.at + context.size();
    query.at = recurrent.at + recurrent.size();
  }
  int64_t panels() const { return context.panels() + recurrent.panels() + query.panels(); }

  // Packs one of all panels with pack(gates, weight, packed, number of the panel).
  template <class Pack>
  void pack(const regard_bahdanau& p, const Sizes& s, int64_t number, Pack&& one) const {
    if (number < context.panels()) return one(s.gates, p.context_weight, context, number);
    number -= context.panels();
    if (number < recurrent.panels()) return one(s.gates, p.recurrent, recurrent, number);
    one(s.query, p.query_weight, query, number - recurrent.panels());
  }
};

// Arrays of a block, in the scratch memory of a thread.
struct Block {
  int64_t first, rows, stride, wide, narrow;
  float *h, *hidden, *input, *query, *scores, *key, *v;

  Block(const regard_bahdanau& p, const Sizes& s, const Blocks& blocks, int64_t number)
      : first(number * blocks.each),
        rows(smaller_of(blocks.each, p.rows - first)),
        stride(round_up(s.padded, PANEL)),
        wide(round_up(s.gates.columns(), PANEL)),
        narrow(round_up(s.scores, PANEL)) {
    h = scratch(blocks.each * (stride + 2 * wide + narrow) + s.keys + 2 * s.scores);
    hidden = h + blocks.each * stride;
    input = hidden + blocks.each * wide;
    query = input + blocks.each * wide;
    scores = query + blocks.each * narrow;
    key = scores + s.keys;
    v = key + s.scores;
    clear(h, blocks.each * stride);
    pad(v, p.v, p.score_width, s.scores);
  }

  static void pad(float* to, const float* from, int64_t size, int64_t padded) {
    copy(to, from, size);
    clear(to + size, padded - size);
  }

  // A key with its width filled up.
  const float* padded_key(const regard_bahdanau& p, const Sizes& s, int64_t row, int64_t j) const {
    const float* own = p.key + (row * p.num_keys + j) * p.score_width;
    if (s.scores == p.score_width) return own;
    pad(key, own, p.score_width, s.scores);
    return key;
  }
};

// --- attention of one row at one step ------------------------------------------------------------------------------------

void attend(const regard_bahdanau& p, const Sizes& s, const Block& b, int64_t row, const float* query, float* weights, float* context) {
  const uint8_t* allow = p.allow + row * p.num_keys;
  const float nothing = -__builtin_inff();
  bool any = false;
  Vec most = same(nothing), sum = same(0);
  for (int64_t j = 0; j < s.keys; j++) b.scores[j] = nothing;
  for (int64_t j = 0; j < p.num_keys; j++) {
    if (!allow[j]) continue;
    const float* key = b.padded_key(p, s, row, j);
    Vec score = same(0);
    for (int64_t a = 0; a < s.scores; a += LANES) score += load(b.v + a) * hyperbolic_tangent(load(query + a) + load(key + a));
    b.scores[j] = total(score);
    any = true;
  }
  for (int64_t j = 0; j < s.keys; j += LANES) most = larger(most, load(b.scores + j));
  clear(context, p.memory_width);
  if (!any) return clear(weights, p.num_keys);
  const float peak = largest(most);  // −∞ perhaps if a score is NaN; the sum is then NaN
  for (int64_t j = 0; j < s.keys; j += LANES) {
    const Vec y = exponential(load(b.scores + j) - peak);
    store(b.scores + j, y);
    sum += y;
  }
  const float scale = 1.0f / total(sum);
  for (int64_t j = 0; j < p.num_keys; j++) {
    const float weight = weights[j] = b.scores[j] * scale;
    const float* value = p.value + (row * p.num_keys + j) * p.memory_width;
    if (!allow[j]) continue;
    for (int64_t d = 0; d < p.memory_width; d++) context[d] += weight * value[d];
  }
}

// What a row adds to over all steps: the gradients of its keys (num_keys, scores) and of v (scores).
struct RowSums {
  float *key, *v;
};

void attend_backward(const regard_bahdanau& p, const Sizes& s, const Block& b, int64_t row, const float* query, const float* weights,
                     const float* context_gradient, float* query_gradient, const RowSums& sums) {
  float mean = 0;
  for (int64_t j = 0; j < p.num_keys; j++) {
    const float* value = p.value + (row * p.num_keys + j) * p.memory_width;
    b.scores[j] = weights[j] == 0 ? 0 : inner_product(context_gradient, value, p.memory_width);
    mean += weights[j] * b.scores[j];
  }
  clear(query_gradient, s.scores);
  for (int64_t j = 0; j < p.num_keys; j++) {
    const float g = weights[j] * (b.scores[j] - mean);
    if (g == 0) continue;
    const float* key = b.padded_key(p, s, row, j);
    float* own = sums.key + j * s.scores;
    for (int64_t a = 0; a < s.scores; a += LANES) {
      const Vec y = hyperbolic_tangent(load(query + a) + load(key + a)), t = (1.0f - y * y) * g * load(b.v + a);
      store(query_gradient + a, load(query_gradient + a) + t);
      store(own + a, load(own + a) + t);
      store(sums.v + a, load(sums.v + a) + y * g);
    }
  }
}

// --- blocks of rows ------------------------------------------------------------------------------------------------------

void run_block(const regard_bahdanau& p, const Sizes& s, const Weights& weights, const float* biases, const Block& b) {
  for (int64_t row = 0; row < b.rows; row++) copy(b.h + row * b.stride, p.first + (b.first + row) * p.width, p.width);
  for (int64_t step = 0; step < p.steps; step++) {
    multiply<false>(b.query, b.narrow, {b.h, b.stride, 1}, weights.query, b.rows);
    for (int64_t row = 0; row < b.rows; row++) {
      const int64_t slot = (b.first + row) * p.steps + step;
      float* query = p.kept + slot * s.record + 5 * s.padded;
      copy(query, b.query + row * b.narrow, s.scores);
      attend(p, s, b, b.first + row, query, p.weights + slot * p.num_keys, p.contexts + slot * p.memory_width);
    }
    const View contexts = {p.contexts + (b.first * p.steps + step) * p.memory_width, p.steps * p.memory_width, 1};
    multiply<false>(b.input, b.wide, contexts, weights.context, b.rows);
    multiply<false>(b.hidden, b.wide, {b.h, b.stride, 1}, weights.recurrent, b.rows);
    for (int64_t row = 0; row < b.rows; row++) {
      const int64_t slot = (b.first + row) * p.steps + step;
      float *h = b.h + row * b.stride, *record = p.kept + slot * s.record;
      pad_gates(s.gates, p.input + slot * 3 * p.width, record);
      for (int64_t i = 0; i < s.gates.columns(); i += LANES) store(record + i, load(record + i) + load(b.input + row * b.wide + i));
      gru_forward({b.hidden + row * b.wide, biases, biases + s.gates.columns(), record, h, s.padded});
      copy(p.states + slot * p.width, h, p.width);
    }
  }
}

void run_back(const regard_bahdanau& p, const Sizes& s, const Weights& weights, float* gradients, float* context_gradients,
              const RowSums& all_sums, const Block& b) {
  for (int64_t step = p.steps - 1; step >= 0; step--) {
    const int64_t first = b.first * p.steps + step;
    for (int64_t row = 0; row < b.rows; row++) {
      const int64_t slot = first + row * p.steps;
      float *h = b.h + row * b.stride, *own = gradients + slot * s.gradient;
      for (int64_t i = 0; i < p.width; i++) h[i] += p.states_gradient[slot * p.width + i];
      gru_backward({p.kept + slot * s.record, h, b.hidden + row * b.wide, own, s.padded});
      for (int64_t gate = 0; gate < 3; gate++) copy(p.input_gradient + (slot * 3 + gate) * p.width, own + gate * s.padded, p.width);
      Block::pad(context_gradients + slot * s.memory, p.contexts_gradient + slot * p.memory_width, p.memory_width, s.memory);
    }
    const View own = {gradients + first * s.gradient, p.steps * s.gradient, 1};
    multiply<true>(context_gradients + first * s.memory, p.steps * s.memory, own, weights.context, b.rows);
    for (int64_t row = 0; row < b.rows; row++) {
      const int64_t slot = first + row * p.steps, of_row = b.first + row;
      const RowSums sums = {all_sums.key + of_row * p.num_keys * s.scores, all_sums.v + of_row * s.scores};
      attend_backward(p, s, b, of_row, p.kept + slot * s.record + 5 * s.padded, p.weights + slot * p.num_keys,
                      context_gradients + slot * s.memory, gradients + slot * s.gradient + 4 * s.padded, sums);
    }
    multiply<true>(b.h, b.stride, {b.hidden, b.wide, 1}, weights.recurrent, b.rows);
    multiply<true>(b.h, b.stride, {own.at + 4 * s.padded, own.rows, 1}, weights.query, b.rows);
  }
  for (int64_t row = 0; row < b.rows; row++) copy(p.first_gradient + (b.first + row) * p.width, b.h + row * b.stride, p.width);
}

// --- gradients of weights and of the memory ------------------------------------------------------------------------------

void weight_gradients(const regard_bahdanau& p, const Sizes& s, const float* gradients, const Packed& contexts, const Packed& before) {
  const int64_t tiles = s.padded / GATE_ROWS, of_gates = 8 * tiles, most = p.width > p.memory_width ? p.width : p.memory_width;
  parallel(of_gates + s.scores / GATE_ROWS, [&](int64_t number) {
    float* memory = scratch(weight_scratch(most));
    if (number >= of_gates) {
      const int64_t unit = (number - of_gates) * GATE_ROWS, rows = smaller_of(GATE_ROWS, p.score_width - unit);
      return weight_rows(gradients + 4 * s.padded + unit, s.gradient, before, rows, memory, p.query_weight_gradient + unit * p.width, nullptr);
    }
    const bool recurrent = number % 2;
    const int64_t unit = number / 2 % tiles * GATE_ROWS, part = number / 2 / tiles, gate = part == 3 ? 2 : part;
    if (unit >= p.width || part == (recurrent ? 2 : 3)) return;
    const int64_t row = gate * p.width + unit, rows = smaller_of(GATE_ROWS, p.width - unit);
    const float* own = gradients + part * s.padded + unit;
    if (recurrent) {
      weight_rows(own, s.gradient, before, rows, memory, p.recurrent_gradient + row * p.width, p.recurrent_bias_gradient + row);
    } else {
      weight_rows(own, s.gradient, contexts, rows, memory, p.context_weight_gradient + row * p.memory_width, nullptr);
    }
  });
}

void memory_gradients(const regard_bahdanau& p, const Sizes& s, const float* context_gradients, const RowSums& sums) {
  parallel(p.rows, [&](int64_t row) {
    float* out = scratch(p.num_keys * s.memory);
    product<false>(out, s.memory, {p.weights + row * p.steps * p.num_keys, 1, p.num_keys}, context_gradients + row * p.steps * s.memory,
                   s.memory, p.num_keys, s.memory, p.steps);
    for (int64_t j = row * p.num_keys; j < (row + 1) * p.num_keys; j++) {
      copy(p.value_gradient + j * p.memory_width, out + (j - row * p.num_keys) * s.memory, p.memory_width);
      copy(p.key_gradient + j * p.score_width, sums.key + j * s.scores, p.score_width);
    }
  });
  clear(p.v_gradient, p.score_width);
  for (int64_t row = 0; row < p.rows; row++)
    for (int64_t a = 0; a < p.score_width; a++) p.v_gradient[a] += sums.v[row * s.scores + a];
}

}  // namespace

// --- the kernels ---------------------------------------------------------------------------------------------------------

static void bahdanau_forward(const regard_bahdanau& p) {
  const Sizes s(p);
  Weights weights(p.memory_width, s.gates.columns(), p.width, s.gates.columns(), p.width, s.scores);
  const Memory memory(weights.size() + 2 * s.gates.columns());
  weights.lay_out(memory.at);
  float* biases = memory.at + weights.size();
  clear(biases, s.gates.columns());  // that of W is part of the input
  pad_gates(s.gates, p.recurrent_bias, biases + s.gates.columns());
  parallel(weights.panels(), [&](int64_t number) { weights.pack(p, s, number, pack_transposed); });
  const Blocks blocks(p.rows, 1);
  parallel(blocks.count, [&](int64_t number) { run_block(p, s, weights, biases, Block(p, s, blocks, number)); });
}

static void bahdanau_backward(const regard_bahdanau& p) {
  const Sizes s(p);
  Weights weights(s.gates.columns(), p.memory_width, s.gates.columns(), p.width, s.scores, p.width);
  Packed contexts = {nullptr, s.positions, p.memory_width}, before = {nullptr, s.positions, p.width};
  const int64_t of_sums = p.rows * (p.num_keys + 1) * s.scores;
  const Memory memory(weights.size() + contexts.size() + before.size() + of_sums + s.positions * (s.gradient + s.memory));
  weights.lay_out(memory.at);
  contexts.at = memory.at + weights.size();
  before.at = contexts.at + contexts.size();
  const RowSums sums = {before.at + before.size(), before.at + before.size() + p.rows * p.num_keys * s.scores};
  clear(sums.key, of_sums);
  float *gradients = sums.key + of_sums, *context_gradients = gradients + s.positions * s.gradient;
  parallel(weights.panels() + contexts.panels() + before.panels(), [&](int64_t number) {
    if (number < weights.panels()) return weights.pack(p, s, number, pack_rows);
    number -= weights.panels();
    if (number < contexts.panels()) return pack_matrix(p.contexts, p.memory_width, contexts, number);
    pack_matrix(p.kept + 4 * s.padded, s.record, before, number - contexts.panels());
  });
  const Blocks blocks(p.rows, 1);
  parallel(blocks.count, [&](int64_t number) {
    run_back(p, s, weights, gradients, context_gradients, sums, Block(p, s, blocks, number));
  });
  weight_gradients(p, s, gradients, contexts, before);
  memory_gradients(p, s, context_gradients, sums);
}

extern const Bahdanau bahdanau_kernels = {bahdanau_forward, bahdanau_backward};

}  // namespace regard::ISA
