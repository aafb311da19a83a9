// Tests of the native engine for the sanitizers: sizes with tails, every option, States that share caches.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#include "engine_abi.h"

namespace {

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "engine_test: %s\n", what);
  std::exit(1);
}

using Floats = std::vector<float>;

// What a model is made of.
struct Options {
  int64_t width, heads, kv_heads, key_width, inner, vocab, activation, norm, rotary, window;
  bool pre_norm, residual, projects, alibi, cross;
};

// A random model; its numbers live as long as it.
class Model {
 public:
  explicit Model(const Options& o) : options(o) {
    const int64_t layers = 2;
    for (int64_t number = 0; number < layers; number++) {
      encoder_.push_back(layer(false));
      decoder_.push_back(layer(o.cross));
    }
    vectors_ = numbers(positions.count * o.width);
    positions.vectors = vectors_;
    positions.sines = numbers(positions.count * o.key_width);
    positions.cosines = numbers(positions.count * o.key_width);
    regard_transformer model{};
    if (o.cross) model.encoder = stack(encoder_);
    model.decoder = stack(decoder_);
    model.output = linear(o.width, o.vocab);
    model.width = o.width, model.pre_norm = o.pre_norm, model.residual = o.residual;
    engine = regard_engine_new(&model);
    check(engine != nullptr && regard_engine_nbytes(engine) > 0, "no engine");
  }
  ~Model() { regard_engine_free(engine); }

  const Options options;
  regard_positions positions{nullptr, nullptr, nullptr, 12};
  regard_engine* engine;

 private:
  const float* numbers(int64_t count) {
    kept_.emplace_back(static_cast<size_t>(count));
    for (float& x : kept_.back()) x = static_cast<float>((seed_ = seed_ * 1103515245u + 12345u) >> 16 & 1023) / 1024.0f - 0.5f;
    return kept_.back().data();
  }
  regard_linear linear(int64_t inputs, int64_t outputs) {
    return {numbers(inputs * outputs), numbers(outputs), inputs, outputs};
  }
  regard_norm norm() {
    const auto& o = options;
    if (o.norm == 0) return {};
    return {numbers(o.width), o.norm == 1 ? numbers(o.width) : nullptr, o.norm, 1e-5f};
  }
  regard_attention attention() {
    const auto& o = options;
    regard_attention a{};
    a.query = linear(o.width, o.heads * o.key_width), a.key = linear(o.width, o.kv_heads * o.key_width);
    if (o.projects) a.value = linear(o.width, o.kv_heads * o.key_width);
    a.value_width = o.projects ? o.key_width : o.width;
    a.output = linear(o.heads * a.value_width, o.width);
    a.heads = o.heads, a.kv_heads = o.kv_heads, a.key_width = o.key_width, a.rotary = o.rotary, a.scale = 0.5f;
    a.slopes = o.alibi ? numbers(o.heads) : nullptr;
    return a;
  }
  regard_layer layer(bool cross) {
    const auto& o = options;
    regard_layer l{};
    l.self = attention(), l.self_norm = norm(), l.cross_norm = norm(), l.feed_norm = norm();
    if (cross) l.cross = attention(), l.cross.rotary = 0, l.cross.slopes = nullptr;
    l.inner = linear(o.width, o.activation == 5 ? 2 * o.inner : o.inner), l.outer = linear(o.inner, o.width);
    l.activation = o.activation;
    return l;
  }
  regard_stack stack(const std::vector<regard_layer>& layers) {
    const auto& o = options;
    regard_stack s{};
    s.layers = layers.data(), s.num_layers = static_cast<int64_t>(layers.size());
    s.tokens = numbers(o.vocab * o.width), s.vocab = o.vocab, s.token_width = s.position_width = o.width;
    s.window = o.window, s.token_scale = 2;
    s.embedding_norm = norm(), s.last_norm = norm();
    return s;
  }

  unsigned seed_ = 1;
  std::deque<Floats> kept_;
  std::vector<regard_layer> encoder_, decoder_;
  const float* vectors_ = nullptr;
};

regard_state* start(const Model& model, const std::vector<int64_t>& lengths, int64_t first_id) {
  int64_t rows = 0;
  std::vector<int64_t> ids;
  for (int64_t length : lengths) {
    rows += length;
    for (int64_t i = 0; i < length; i++) ids.push_back((first_id + i) % model.options.vocab);
  }
  Floats states(static_cast<size_t>(rows * model.options.width));
  const int64_t sentences = static_cast<int64_t>(lengths.size());
  if (model.options.cross) {
    Floats weights(static_cast<size_t>(2 * sentences * model.options.heads * 12 * 12));
    check(regard_engine_encode(model.engine, ids.data(), lengths.data(), sentences, &model.positions, states.data(),
                               weights.data()) == 0, "encode");
  }
  for (float x : states) check(std::isfinite(x), "a state is not finite");
  return regard_engine_start(model.engine, states.data(), lengths.data(), sentences);
}

Floats step(const Model& model, regard_state* state, int64_t id) {
  int64_t sizes[4];
  regard_state_sizes(state, sizes);
  const std::vector<int64_t> ids(static_cast<size_t>(sizes[0] * sizes[1]), id);
  const size_t rows = ids.size(), heads = static_cast<size_t>(model.options.heads);
  Floats logits(rows * static_cast<size_t>(model.options.vocab)), own(2 * rows * heads * static_cast<size_t>(sizes[2] + 1)),
      cross(2 * rows * heads * static_cast<size_t>(sizes[3]) + 1);
  check(regard_engine_step(model.engine, state, ids.data(), &model.positions, logits.data(), own.data(), cross.data()) == 0,
        "step");
  for (float x : logits) check(std::isfinite(x), "a logit is not finite");
  return logits;
}

bool same_row(const Floats& many, size_t row, const Floats& one) {
  return std::memcmp(many.data() + row * one.size(), one.data(), one.size() * sizeof(float)) == 0;
}

void test_model(const Options& options) {
  const Model model(options);
  const bool reads = options.cross;
  regard_state *both = start(model, {reads ? 5 : 0, reads ? 3 : 0}, 1), *alone = start(model, {reads ? 3 : 0}, 1);
  check(same_row(step(model, both, 2), 1, step(model, alone, 2)), "a sentence depends on its neighbour");
  const int64_t parents[] = {0, 0, 0, 0, 0, 0}, second[] = {1}, mixed[] = {2, 0, 1, 1, 1, 2};
  regard_state* three = regard_state_select(both, parents, 3);
  regard_state* kept = regard_state_keep(three, second, 1);
  const Floats before = step(model, alone, 3);
  check(same_row(step(model, three, 3), 3, before), "hypotheses of one parent differ");
  check(same_row(step(model, kept, 3), 0, before), "a State that was kept was written to");
  regard_state* others = regard_state_select(three, mixed, 3);
  const regard_state* parts[] = {others, kept};
  regard_state* joined = regard_state_join(parts, 2);
  for (int64_t id = 4; id < 9; id++) step(model, joined, id);
  int64_t lengths[3], sizes[4];
  regard_state_lengths(joined, lengths);
  regard_state_sizes(joined, sizes);
  check(lengths[0] == 7 && lengths[2] == 7 && sizes[0] == 3 && sizes[1] == 3, "sizes of a joined State");
  check(regard_state_nbytes(joined) > regard_state_nbytes(alone), "the size of a State");
  const int64_t unknown = options.vocab;
  check(regard_engine_step(model.engine, alone, &unknown, &model.positions, nullptr, nullptr, nullptr) == REGARD_NO_SUCH_TOKEN,
        "an unknown token");
  for (int64_t id = 0; id < 10; id++) step(model, alone, id);
  const int64_t known = 1;
  check(regard_engine_step(model.engine, alone, &known, &model.positions, nullptr, nullptr, nullptr) ==
            REGARD_TOO_FEW_POSITIONS, "too many positions");
  for (regard_state* state : {both, alone, three, kept, others, joined}) regard_state_free(state);
}

}  // namespace

void test_engine() {
  test_model({24, 2, 2, 12, 19, 37, 1, 1, 0, -1, true, true, true, false, true});
  test_model({21, 3, 1, 6, 33, 17, 5, 2, 1, -1, false, true, true, false, true});
  test_model({16, 4, 2, 5, 8, 11, 2, 0, 0, 2, true, true, false, true, true});
  test_model({40, 2, 2, 34, 70, 16, 3, 1, 2, 1, false, false, true, false, true});
  test_model({18, 1, 1, 18, 5, 50, 4, 1, 0, -1, true, true, true, true, false});
}
