// The encoder of the native engine. Sentences lie one after the other, without padding.
#include <new>

#include "engine.h"
#include "pool.h"

using namespace regard;

namespace {

struct Batch {
  const int64_t* lengths;
  std::vector<int64_t> starts;
  int64_t sentences, rows = 0, longest = 0;

  Batch(const int64_t* lengths, int64_t sentences) : lengths(lengths), sentences(sentences) {
    for (int64_t number = 0; number < sentences; number++) {
      starts.push_back(rows);
      rows += lengths[number];
      longest = lengths[number] > longest ? lengths[number] : longest;
    }
  }
};

// Self-attention of one sentence. input: its vectors. packed: queries, keys and values, `stride` numbers per position.
void attend_sentence(const Attention& a, const float* input, float* packed, int64_t stride, int64_t length, int64_t window,
                     const regard_positions& positions, float* contexts, float* weights, int64_t longest) {
  for (int64_t i = 0; i < length; i++) {
    a.rotate(packed + i * stride, a.heads.heads, positions, i);
    a.rotate(packed + i * stride + a.queries, a.heads.key_groups, positions, i);
  }
  for (int64_t i = 0; i < length; i++) {
    Query q{};
    q.query = packed + i * stride;
    q.keys = packed + a.queries, q.key_row = stride;
    q.values = a.projects_values ? q.keys + a.keys : input, q.value_row = a.projects_values ? stride : a.values;
    q.first = window >= 0 && i > window ? i - window : 0;
    q.last = window >= 0 && i + window + 1 < length ? i + window + 1 : length;
    q.position = i;
    q.scores = scratch(length + 8);
    q.context = contexts + i * a.contexts;
    q.weights = weights == nullptr ? nullptr : weights + i * longest, q.weights_head = longest * longest;
    a.attend(q);
  }
}

void self_attention(const regard_engine& e, const Layer& layer, float* x, const Batch& batch, const regard_positions& positions,
                    float* weights) {
  const Attention& a = layer.self;
  const float* input = e.before(layer.self_norm, x, batch.rows);
  const int64_t stride = a.inputs.outputs();
  float* packed = room(Room::QUERIES, batch.rows * stride);
  a.inputs.multiply(input, e.width, packed, batch.rows);
  float* contexts = room(Room::CONTEXT, batch.rows * a.contexts);
  parallel(batch.sentences, [&](int64_t number) {
    const int64_t start = batch.starts[static_cast<size_t>(number)], area = a.heads.heads * batch.longest * batch.longest;
    attend_sentence(a, input + start * e.width, packed + start * stride, stride, batch.lengths[number], e.encoder.window,
                    positions, contexts + start * a.contexts,
                    weights == nullptr ? nullptr : weights + number * area, batch.longest);
  });
  e.after(layer.self_norm, x, a.output, contexts, a.contexts, batch.rows);
}

}  // namespace

int regard_engine_encode(const regard_engine* engine, const int64_t* ids, const int64_t* lengths, int64_t sentences,
                         const regard_positions* positions, float* states, float* weights) try {
  const Batch batch(lengths, sentences);
  const Stack& stack = engine->encoder;
  if (!stack.knows(ids, batch.rows)) return REGARD_NO_SUCH_TOKEN;
  if (batch.longest > positions->count) return REGARD_TOO_FEW_POSITIONS;
  float* x = room(Room::INPUT, batch.rows * engine->width);
  for (int64_t number = 0, row = 0; number < sentences; number++)
    for (int64_t i = 0; i < lengths[number]; i++, row++) stack.embed(ids[row], *positions, i, x + row * engine->width);
  stack.embedding_norm.apply(x, x, batch.rows);
  for (const Layer& layer : stack.layers) {
    self_attention(*engine, layer, x, batch, *positions, weights);
    engine->feed(layer, x, batch.rows);
    if (weights != nullptr) weights += sentences * layer.self.heads.heads * batch.longest * batch.longest;
  }
  stack.last_norm.apply(x, states, batch.rows);
  return 0;
} catch (const std::bad_alloc&) {
  return REGARD_NO_MEMORY;
}
