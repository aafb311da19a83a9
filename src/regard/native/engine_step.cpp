// The decoder of the native engine: the first State of a sentence, and one step.
#include <cstring>
#include <new>

#include "engine.h"
#include "pool.h"

using namespace regard;

namespace {

constexpr int64_t FEWEST_SLOTS = 16;

void copy(float* to, const float* from, int64_t count) { std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float)); }

// --- the first State ---------------------------------------------------------------------------------------------------------

// Cuts the keys and values of one sentence out of those of all layers. projected: `stride` numbers per position.
std::shared_ptr<Sentence> make_sentence(const regard_engine& e, const float* states, const float* projected, int64_t stride,
                                        int64_t length) {
  auto sentence = std::make_shared<Sentence>();
  sentence->num_sources = length;
  sentence->cache.resize(e.decoder.layers.size());
  for (const Layer& layer : e.decoder.layers) {
    const Attention& a = layer.cross;
    Floats rows(static_cast<size_t>(length * a.row));
    for (int64_t i = 0; i < length; i++) {
      copy(rows.data() + i * a.row, projected + i * stride, a.keys);
      const float* values = a.projects_values ? projected + i * stride + a.keys : states + i * e.width;
      copy(rows.data() + i * a.row + a.keys, values, a.values);
    }
    projected += a.keys + (a.projects_values ? a.values : 0);
    sentence->sources.push_back(std::move(rows));
  }
  return sentence;
}

// --- one step ----------------------------------------------------------------------------------------------------------------

struct Step {
  const regard_engine& engine;
  regard_state& state;
  const regard_positions& positions;
  int64_t hypotheses, rows, longest_target, longest_source;

  Item& item(int64_t number) const { return state.items[static_cast<size_t>(number)]; }
  int64_t sentences() const { return static_cast<int64_t>(state.items.size()); }
};

// Gives each hypothesis one more slot, in a cache that no other State uses.
void add_slots(const regard_engine& e, Item& item, int64_t hypotheses) {
  if (item.sentence.use_count() > 1) item.sentence = std::make_shared<Sentence>(*item.sentence);
  Sentence& s = *item.sentence;
  if (s.used + hypotheses > s.capacity) {
    const int64_t least = s.used + hypotheses, doubled = 2 * s.capacity > FEWEST_SLOTS ? 2 * s.capacity : FEWEST_SLOTS;
    s.capacity = doubled > least ? doubled : least;
    for (size_t layer = 0; layer < s.cache.size(); layer++)
      s.cache[layer].resize(static_cast<size_t>(s.capacity * e.decoder.layers[layer].self.row));
  }
  std::vector<int32_t> slots;
  slots.reserve(static_cast<size_t>(hypotheses * (item.length + 1)));
  for (int64_t k = 0; k < hypotheses; k++) {
    const auto first = item.slots.begin() + k * item.length;
    slots.insert(slots.end(), first, first + item.length);
    slots.push_back(static_cast<int32_t>(s.used + k));
  }
  item.slots.swap(slots);
  item.length++;
  s.used += hypotheses;
}

void self_attention(const Step& step, size_t number, float* x, float* weights) {
  const regard_engine& e = step.engine;
  const Layer& layer = e.decoder.layers[number];
  const Attention& a = layer.self;
  const float* input = e.before(layer.self_norm, x, step.rows);
  const int64_t stride = a.inputs.outputs(), K = step.hypotheses, window = e.decoder.window;
  float *packed = room(Room::QUERIES, step.rows * stride), *contexts = room(Room::CONTEXT, step.rows * a.contexts);
  a.inputs.multiply(input, e.width, packed, step.rows);
  parallel(step.sentences(), [&](int64_t b) {
    Item& item = step.item(b);
    Sentence& s = *item.sentence;
    float* cache = s.cache[number].data();
    const int64_t position = item.length - 1;
    for (int64_t k = 0; k < K; k++) {
      float *queries = packed + (b * K + k) * stride, *keys = queries + a.queries, *slot = cache + (s.used - K + k) * a.row;
      a.rotate(queries, a.heads.heads, step.positions, position);
      a.rotate(keys, a.heads.key_groups, step.positions, position);
      copy(slot, keys, a.keys);
      copy(slot + a.keys, a.projects_values ? keys + a.keys : input + (b * K + k) * e.width, a.values);
    }
    for (int64_t k = 0; k < K; k++) {
      Query q{};
      q.query = packed + (b * K + k) * stride;
      q.keys = cache, q.values = cache + a.keys, q.key_row = q.value_row = a.row;
      q.slots = item.slots.data() + k * item.length;
      q.first = window >= 0 && position > window ? position - window : 0, q.last = item.length, q.position = position;
      q.scores = scratch(item.length + 8);
      q.context = contexts + (b * K + k) * a.contexts;
      q.weights_head = K * step.longest_target;
      q.weights = weights == nullptr ? nullptr : weights + (b * a.heads.heads * K + k) * step.longest_target;
      a.attend(q);
    }
  });
  e.after(layer.self_norm, x, a.output, contexts, a.contexts, step.rows);
}

void cross_attention(const Step& step, size_t number, float* x, float* weights) {
  const regard_engine& e = step.engine;
  const Layer& layer = e.decoder.layers[number];
  const Attention& a = layer.cross;
  const float* input = e.before(layer.cross_norm, x, step.rows);
  const int64_t K = step.hypotheses;
  float *queries = room(Room::QUERIES, step.rows * a.queries), *contexts = room(Room::CONTEXT, step.rows * a.contexts);
  a.inputs.multiply(input, e.width, queries, step.rows);
  parallel(step.sentences(), [&](int64_t b) {
    const Sentence& s = *step.item(b).sentence;
    const float* sources = s.sources[number].data();
    for (int64_t k = 0; k < K; k++) {
      Query q{};
      q.query = queries + (b * K + k) * a.queries;
      q.keys = sources, q.values = sources + a.keys, q.key_row = q.value_row = a.row;
      q.last = s.num_sources;
      q.scores = scratch(s.num_sources + 8);
      q.context = contexts + (b * K + k) * a.contexts;
      q.weights_head = K * step.longest_source;
      q.weights = weights == nullptr ? nullptr : weights + (b * a.heads.heads * K + k) * step.longest_source;
      a.attend(q);
    }
  });
  e.after(layer.cross_norm, x, a.output, contexts, a.contexts, step.rows);
}

// Reads the tokens, and returns the vectors of the last layer.
const float* read(const Step& step, const int64_t* ids, float* self_weights, float* cross_weights) {
  const regard_engine& e = step.engine;
  const Stack& stack = e.decoder;
  float* x = room(Room::INPUT, step.rows * e.width);
  for (int64_t row = 0; row < step.rows; row++)
    stack.embed(ids[row], step.positions, step.item(row / step.hypotheses).length - 1, x + row * e.width);
  stack.embedding_norm.apply(x, x, step.rows);
  for (size_t number = 0; number < stack.layers.size(); number++) {
    const Layer& layer = stack.layers[number];
    self_attention(step, number, x, self_weights);
    if (layer.cross.heads.heads > 0) cross_attention(step, number, x, cross_weights);
    e.feed(layer, x, step.rows);
    if (self_weights != nullptr) self_weights += step.rows * layer.self.heads.heads * step.longest_target;
    if (cross_weights != nullptr) cross_weights += step.rows * layer.cross.heads.heads * step.longest_source;
  }
  stack.last_norm.apply(x, x, step.rows);
  return x;
}

}  // namespace

regard_state* regard_engine_start(const regard_engine* engine, const float* states, const int64_t* lengths,
                                  int64_t sentences) try {
  std::unique_ptr<regard_state> state(new regard_state);
  int64_t rows = 0;
  for (int64_t number = 0; number < sentences; number++) rows += lengths[number];
  const int64_t stride = engine->sources.outputs();
  float* projected = room(Room::QUERIES, rows * stride);
  if (engine->sources) engine->sources.multiply(states, engine->width, projected, rows);
  for (int64_t number = 0; number < sentences; number++) {
    state->items.push_back({make_sentence(*engine, states, projected, stride, lengths[number]), {}, 0});
    states += lengths[number] * engine->width;
    projected += lengths[number] * stride;
  }
  return state.release();
} catch (const std::bad_alloc&) {
  return nullptr;
}

int regard_engine_step(const regard_engine* engine, regard_state* state, const int64_t* ids, const regard_positions* positions,
                       float* logits, float* self_weights, float* cross_weights) try {
  int64_t sizes[4];
  regard_state_sizes(state, sizes);
  const Step step{*engine, *state, *positions, sizes[1], sizes[0] * sizes[1], sizes[2] + 1, sizes[3]};
  if (!engine->decoder.knows(ids, step.rows)) return REGARD_NO_SUCH_TOKEN;
  if (step.longest_target > positions->count) return REGARD_TOO_FEW_POSITIONS;
  for (Item& item : state->items) add_slots(*engine, item, step.hypotheses);
  const float* states = read(step, ids, self_weights, cross_weights);
  if (logits == nullptr) return 0;
  int64_t width = engine->width;
  if (engine->project) {
    float* projected = room(Room::OUTPUT, step.rows * engine->project.outputs());
    engine->project.multiply(states, width, projected, step.rows);
    states = projected, width = engine->project.outputs();
  }
  engine->output.multiply(states, width, logits, step.rows);
  return 0;
} catch (const std::bad_alloc&) {
  return REGARD_NO_MEMORY;
}
