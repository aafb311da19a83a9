// The kernels of the native engine: matrix products, norms, attention of one query. They are compiled once per instruction set.
//
// Every number of a result depends on the numbers of its own row alone, in an order that is fixed: neither the other rows of a
// batch nor the number of threads change a bit.
#pragma once
#include <cstddef>
#include <cstdint>

namespace regard {

constexpr int64_t PANEL = 16;  // columns that are computed together

// A matrix W and a bias for x Wᵀ + b, in panels of columns: [outputs / PANEL][inputs][PANEL], filled up with zeros.
struct Packed {
  int64_t inputs, outputs;
  const float *panels, *bias;
};

enum Activation : int64_t { NONE, RELU, GELU, GELU_TANH, SILU, SWIGLU };

// out = activation(x Wᵀ + b), or out + x Wᵀ + b if `adds`.
struct Product {
  const float* x;
  int64_t x_row;
  float* out;
  int64_t out_row;
  int64_t rows;
  Activation activation;
  bool adds;
};

struct NormWeights {
  int64_t kind;  // as in regard_norm
  const float *weight, *bias;
  float eps;
};

// The heads of one layer's attention. Heads share key_groups groups of keys and value_groups groups of values.
struct Heads {
  int64_t heads, key_groups, value_groups, key_width, value_width;
  float scale;
  const float* slopes;
};

// One query and the keys that it attends to: numbers `first` to `last` - 1 in order of position.
struct Query {
  const float* query;
  const float *keys, *values;
  int64_t key_row, value_row;  // number i is at slots[i] * row, or at i * row if slots is null
  const int32_t* slots;
  int64_t first, last, position;
  float* scores;     // room for last - first numbers, and 7 more
  float* context;    // (heads, value_width)
  float* weights;    // (heads, weights_head), or null
  int64_t weights_head;
};

struct EngineKernels {
  // Computes these rows and panels only.
  void (*product)(const Packed& matrix, const Product& product, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end);
  void (*norm)(const NormWeights& norm, const float* x, float* y, int64_t rows, int64_t width);
  void (*gate)(float* x, int64_t rows, int64_t width);  // (rows, 2 width): the left half becomes SiLU(left) · right
  void (*rotate)(float* x, int64_t heads, int64_t width, bool halves, const float* sines, const float* cosines);
  void (*attend)(const Heads& heads, const Query& query);
};

namespace portable {
extern const EngineKernels engine_kernels;
}
namespace avx2 {
extern const EngineKernels engine_kernels;
}
namespace avx512 {
extern const EngineKernels engine_kernels;
}

// Those of the instruction set in use.
const EngineKernels& engine_kernels();

}  // namespace regard
