// The State of the native engine's decoder: which sentences, which hypotheses, and where their tokens are in the caches.
#include "engine.h"

#include <new>

using namespace regard;

namespace {

int64_t longest_target(const regard_state& state) {
  int64_t longest = 0;
  for (const Item& item : state.items) longest = item.length > longest ? item.length : longest;
  return longest;
}

int64_t longest_source(const regard_state& state) {
  int64_t longest = 0;
  for (const Item& item : state.items)
    longest = item.sentence->num_sources > longest ? item.sentence->num_sources : longest;
  return longest;
}

}  // namespace

void regard_state_sizes(const regard_state* state, int64_t* sizes) {
  sizes[0] = static_cast<int64_t>(state->items.size());
  sizes[1] = state->hypotheses;
  sizes[2] = longest_target(*state);
  sizes[3] = longest_source(*state);
}

void regard_state_lengths(const regard_state* state, int64_t* lengths) {
  for (const Item& item : state->items) *lengths++ = item.length;
}

int64_t regard_state_nbytes(const regard_state* state) {
  size_t bytes = 0;
  for (const Item& item : state->items) {
    bytes += item.slots.size() * sizeof(int32_t);
    for (const auto* layers : {&item.sentence->sources, &item.sentence->cache})
      for (const Floats& layer : *layers) bytes += layer.size() * sizeof(float);
  }
  return static_cast<int64_t>(bytes);
}

regard_state* regard_state_select(const regard_state* state, const int64_t* parents, int64_t hypotheses) try {
  std::unique_ptr<regard_state> chosen(new regard_state);
  chosen->hypotheses = hypotheses;
  for (const Item& item : state->items) {
    Item next{item.sentence, {}, item.length};
    next.slots.reserve(static_cast<size_t>(hypotheses * (item.length + 1)));
    for (int64_t k = 0; k < hypotheses; k++, parents++) {
      const auto first = item.slots.begin() + *parents * item.length;
      next.slots.insert(next.slots.end(), first, first + item.length);
    }
    chosen->items.push_back(std::move(next));
  }
  return chosen.release();
} catch (const std::bad_alloc&) {
  return nullptr;
}

regard_state* regard_state_keep(const regard_state* state, const int64_t* sentences, int64_t count) try {
  std::unique_ptr<regard_state> kept(new regard_state);
  kept->hypotheses = state->hypotheses;
  for (int64_t number = 0; number < count; number++) kept->items.push_back(state->items[static_cast<size_t>(sentences[number])]);
  return kept.release();
} catch (const std::bad_alloc&) {
  return nullptr;
}

regard_state* regard_state_join(const regard_state* const* states, int64_t count) try {
  std::unique_ptr<regard_state> joined(new regard_state);
  joined->hypotheses = states[0]->hypotheses;
  for (int64_t number = 0; number < count; number++)
    joined->items.insert(joined->items.end(), states[number]->items.begin(), states[number]->items.end());
  return joined.release();
} catch (const std::bad_alloc&) {
  return nullptr;
}

void regard_state_free(regard_state* state) { delete state; }
