// The weights of the native engine: packing, and the parts that encoder and decoder share.
#include "engine.h"

#include <cstdlib>
#include <cstring>
#include <new>

#include "pool.h"

namespace regard {
namespace {

// Work on fewer products than this is not divided among threads.
constexpr int64_t WORTH_SHARING = 1 << 20;
constexpr int64_t SHARED_ROWS = 96;

const float* or_null(const Floats& numbers) { return numbers.empty() ? nullptr : numbers.data(); }

Floats copied(const float* from, int64_t size) { return from == nullptr ? Floats() : Floats(from, from + size); }

struct Block {
  float* at = nullptr;
  int64_t size = 0;
  ~Block() { std::free(at); }
};

}  // namespace

float* room(Room purpose, int64_t size) {
  thread_local Block blocks[static_cast<int>(Room::COUNT)];
  Block& block = blocks[static_cast<int>(purpose)];
  if (block.size < size) {
    std::free(block.at);
    block.size = 0;
    block.at = static_cast<float*>(std::malloc(static_cast<size_t>(size) * sizeof(float)));
    if (block.at == nullptr) throw std::bad_alloc();
    block.size = size;
  }
  return block.at;
}

// --- matrices and norms ------------------------------------------------------------------------------------------------------

Matrix::Matrix(std::vector<regard_linear> parts) {
  for (const auto& part : parts) {
    if (part.weight == nullptr) continue;
    inputs_ = part.inputs;
    outputs_ += part.outputs;
  }
  const int64_t panels = (outputs_ + PANEL - 1) / PANEL;
  panels_.assign(static_cast<size_t>(panels * inputs_ * PANEL), 0);
  bias_.assign(static_cast<size_t>(panels * PANEL), 0);
  int64_t column = 0;
  for (const auto& part : parts) {
    if (part.weight == nullptr) continue;
    for (int64_t number = 0; number < part.outputs; number++, column++) {
      float* panel = panels_.data() + column / PANEL * inputs_ * PANEL + column % PANEL;
      for (int64_t k = 0; k < inputs_; k++) panel[k * PANEL] = part.weight[number * inputs_ + k];
      if (part.bias != nullptr) bias_[static_cast<size_t>(column)] = part.bias[number];
    }
  }
}

int64_t Matrix::nbytes() const { return static_cast<int64_t>((panels_.size() + bias_.size()) * sizeof(float)); }

void Matrix::multiply(const float* x, int64_t x_row, float* out, int64_t rows, Activation activation, bool adds) const {
  const Packed packed{inputs_, outputs_, panels_.data(), bias_.data()};
  const Product product{x, x_row, out, outputs_, rows, activation, adds};
  const auto& kernels = engine_kernels();
  const int64_t panels = (outputs_ + PANEL - 1) / PANEL;
  if (threads() == 1 || rows * inputs_ * outputs_ < WORTH_SHARING) return kernels.product(packed, product, 0, rows, 0, panels);
  const int64_t row_blocks = (rows + SHARED_ROWS - 1) / SHARED_ROWS;
  const int64_t wanted = 4 * threads() / row_blocks + 1, columns = wanted < panels ? wanted : panels;
  parallel(row_blocks * columns, [&](int64_t number) {
    const int64_t row = number / columns * SHARED_ROWS, column = number % columns;
    const int64_t row_end = row + SHARED_ROWS < rows ? row + SHARED_ROWS : rows;
    kernels.product(packed, product, row, row_end, panels * column / columns, panels * (column + 1) / columns);
  });
}

Norm::Norm(const regard_norm& norm, int64_t width)
    : kind_(norm.kind), width_(width), eps_(norm.eps), weight_(copied(norm.weight, width)), bias_(copied(norm.bias, width)) {}

void Norm::apply(const float* x, float* y, int64_t rows) const {
  if (kind_ != 0) {
    engine_kernels().norm({kind_, weight_.data(), or_null(bias_), eps_}, x, y, rows, width_);
  } else if (x != y) {
    std::memcpy(y, x, static_cast<size_t>(rows * width_) * sizeof(float));
  }
}

// --- layers ------------------------------------------------------------------------------------------------------------------

Attention::Attention(const regard_attention& a, int64_t width, bool is_cross)
    : slopes(copied(a.slopes, a.heads)),
      rotary(a.rotary),
      queries(a.heads * a.key_width),
      keys(a.kv_heads * a.key_width),
      values(a.value.weight == nullptr ? width : a.kv_heads * a.value_width),
      contexts(a.heads * a.value_width),
      row(keys + values),
      inputs(is_cross ? std::vector<regard_linear>{a.query} : std::vector<regard_linear>{a.query, a.key, a.value}),
      output({a.output}),
      projects_values(a.value.weight != nullptr) {
  heads = {a.heads, a.kv_heads, projects_values ? a.kv_heads : 1, a.key_width, a.value_width, a.scale, nullptr};
}

void Attention::rotate(float* x, int64_t groups, const regard_positions& positions, int64_t position) const {
  if (rotary == 0) return;
  const int64_t at = position * (heads.key_width / 2);
  engine_kernels().rotate(x, groups, heads.key_width, rotary == 2, positions.sines + at, positions.cosines + at);
}

void Attention::attend(const Query& query) const {
  Heads with_slopes = heads;
  with_slopes.slopes = or_null(slopes);
  engine_kernels().attend(with_slopes, query);
}

Layer::Layer(const regard_layer& layer, int64_t width)
    : self(layer.self, width, false),
      self_norm(layer.self_norm, width),
      cross_norm(layer.cross_norm, width),
      feed_norm(layer.feed_norm, width),
      inner({layer.inner}),
      outer({layer.outer}),
      activation(static_cast<Activation>(layer.activation)),
      inner_width(layer.outer.inputs) {
  if (layer.cross.heads > 0) cross = Attention(layer.cross, width, true);
}

Stack::Stack(const regard_stack& s, int64_t width)
    : tokens(s.tokens),
      vocab(s.vocab),
      token_width(s.token_width),
      position_width(s.position_width),
      window(s.window),
      token_scale(s.token_scale),
      embedding_norm(s.embedding_norm, width),
      last_norm(s.last_norm, width) {
  for (int64_t number = 0; number < s.num_layers; number++) layers.emplace_back(s.layers[number], width);
}

bool Stack::knows(const int64_t* ids, int64_t count) const {
  for (int64_t number = 0; number < count; number++)
    if (ids[number] < 0 || ids[number] >= vocab) return false;
  return true;
}

void Stack::embed(int64_t id, const regard_positions& positions, int64_t position, float* x) const {
  const float *token = tokens + id * token_width, *vector = positions.vectors + position * position_width;
  const bool appended = position_width > 0 && position_width < embedding_norm.width();
  for (int64_t i = 0; i < token_width; i++) x[i] = token[i] * token_scale + (position_width > 0 && !appended ? vector[i] : 0);
  if (appended) std::memcpy(x + token_width, vector, static_cast<size_t>(position_width) * sizeof(float));
}

}  // namespace regard

using namespace regard;

regard_engine::regard_engine(const regard_transformer& model)
    : encoder(model.encoder, model.width),
      decoder(model.decoder, model.width),
      project({model.project}),
      output({model.output}),
      width(model.width),
      pre_norm(model.pre_norm != 0),
      residual(model.residual != 0) {
  std::vector<regard_linear> parts;
  for (int64_t number = 0; number < model.decoder.num_layers; number++) {
    const regard_attention& cross = model.decoder.layers[number].cross;
    if (cross.heads == 0) continue;
    parts.push_back(cross.key);
    parts.push_back(cross.value);
  }
  sources = Matrix(parts);
}

const float* regard_engine::before(const Norm& norm, const float* x, int64_t rows) const {
  if (!pre_norm) return x;
  float* normed = room(Room::NORMED, rows * width);
  norm.apply(x, normed, rows);
  return normed;
}

void regard_engine::after(const Norm& norm, float* x, const Matrix& matrix, const float* y, int64_t y_row, int64_t rows) const {
  if (matrix) {
    matrix.multiply(y, y_row, x, rows, NONE, residual);
  } else {
    for (int64_t row = 0; row < rows; row++)
      for (int64_t i = 0; i < width; i++) x[row * width + i] = y[row * y_row + i] + (residual ? x[row * width + i] : 0);
  }
  if (!pre_norm) norm.apply(x, x, rows);
}

void regard_engine::feed(const Layer& layer, float* x, int64_t rows) const {
  const float* input = before(layer.feed_norm, x, rows);
  float* inner = room(Room::INNER, rows * layer.inner.outputs());
  const bool gated = layer.activation == SWIGLU;
  layer.inner.multiply(input, width, inner, rows, gated ? NONE : layer.activation);
  if (gated) engine_kernels().gate(inner, rows, layer.inner_width);
  after(layer.feed_norm, x, layer.outer, inner, layer.inner.outputs(), rows);
}

// --- the C ABI ---------------------------------------------------------------------------------------------------------------

regard_engine* regard_engine_new(const regard_transformer* model) try {
  return new regard_engine(*model);
} catch (const std::bad_alloc&) {
  return nullptr;
}

void regard_engine_free(regard_engine* engine) { delete engine; }

int64_t regard_engine_nbytes(const regard_engine* engine) {
  int64_t bytes = engine->sources.nbytes() + engine->project.nbytes() + engine->output.nbytes();
  for (const Stack* stack : {&engine->encoder, &engine->decoder})
    for (const Layer& layer : stack->layers)
      for (const Matrix* matrix : {&layer.self.inputs, &layer.self.output, &layer.cross.inputs, &layer.cross.output,
                                   &layer.inner, &layer.outer})
        bytes += matrix->nbytes();
  return bytes;
}
