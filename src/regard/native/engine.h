// The native engine: a Transformer with packed weights, and the State of its decoder. Compiled once, without an instruction set.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "engine_abi.h"
#include "engine_kernels.h"

namespace regard {

using Floats = std::vector<float>;

// One or several layers y = x Wᵀ + b with the same input, side by side.
class Matrix {
 public:
  Matrix() = default;
  explicit Matrix(std::vector<regard_linear> parts);
  explicit operator bool() const { return outputs_ > 0; }
  int64_t outputs() const { return outputs_; }
  int64_t nbytes() const;
  void multiply(const float* x, int64_t x_row, float* out, int64_t rows, Activation activation = NONE, bool adds = false) const;

 private:
  int64_t inputs_ = 0, outputs_ = 0;
  Floats panels_, bias_;
};

class Norm {
 public:
  Norm() = default;
  Norm(const regard_norm& norm, int64_t width);
  int64_t width() const { return width_; }
  void apply(const float* x, float* y, int64_t rows) const;  // copies x if there is no norm
 private:
  int64_t kind_ = 0, width_ = 0;
  float eps_ = 0;
  Floats weight_, bias_;
};

// Attention of one layer. The keys and values of one position are `row` numbers: the keys of all groups, then the values.
struct Attention {
  Attention() = default;
  Attention(const regard_attention& attention, int64_t width, bool is_cross);

  Heads heads{};
  Floats slopes;
  int64_t rotary = 0, queries = 0, keys = 0, values = 0, contexts = 0, row = 0;
  Matrix inputs;  // queries; of self-attention also keys, and values if they are projected
  Matrix output;  // none: the contexts themselves

  void rotate(float* x, int64_t groups, const regard_positions& positions, int64_t position) const;
  void attend(const Query& query) const;
  bool projects_values = true;
};

struct Layer {
  Layer(const regard_layer& layer, int64_t width);
  Attention self, cross;
  Norm self_norm, cross_norm, feed_norm;
  Matrix inner, outer;
  Activation activation;
  int64_t inner_width;
};

struct Stack {
  Stack() = default;
  Stack(const regard_stack& stack, int64_t width);
  std::vector<Layer> layers;
  const float* tokens = nullptr;
  int64_t vocab = 0, token_width = 0, position_width = 0, window = -1;
  float token_scale = 1;
  Norm embedding_norm, last_norm;

  // Returns whether all ids are in the vocabulary.
  bool knows(const int64_t* ids, int64_t count) const;
  void embed(const int64_t id, const regard_positions& positions, int64_t position, float* x) const;
};

// What the hypotheses of a sentence share: keys and values of the source, and of all tokens that any hypothesis has read.
struct Sentence {
  int64_t num_sources = 0, used = 0, capacity = 0;
  std::vector<Floats> sources;  // per layer (num_sources, row)
  std::vector<Floats> cache;    // per layer (capacity, row)
};

// A sentence in one State. slots (hypotheses, length): where the tokens of each hypothesis are in the cache.
struct Item {
  std::shared_ptr<Sentence> sentence;
  std::vector<int32_t> slots;
  int64_t length = 0;
};

// Memory of this thread, which keeps its size between calls. Each purpose has its own; asking again invalidates it.
enum class Room { INPUT, NORMED, QUERIES, CONTEXT, INNER, OUTPUT, COUNT };
float* room(Room purpose, int64_t size);

}  // namespace regard

struct regard_engine {
  explicit regard_engine(const regard_transformer& model);
  regard::Stack encoder, decoder;
  regard::Matrix sources;  // keys and values of the source for all layers of the decoder
  regard::Matrix project, output;
  int64_t width;
  bool pre_norm, residual;

  // x becomes x + f(norm(x)) or norm(x + f(x)): `before` returns the input of f, `after` adds its output y, or Wy if W is given.
  const float* before(const regard::Norm& norm, const float* x, int64_t rows) const;
  void after(const regard::Norm& norm, float* x, const regard::Matrix& matrix, const float* y, int64_t y_row, int64_t rows) const;
  void feed(const regard::Layer& layer, float* x, int64_t rows) const;
};

struct regard_state {
  int64_t hypotheses = 1;
  std::vector<regard::Item> items;
};
