// Kernels of the native engine that work row by row, and the table of all of them.
#include "engine_product.h"

namespace regard::ISA {
namespace {

// The sum of x_i or, if `squares`, of (x_i − mean)².
INLINE float row_sum(const float* x, int64_t width, bool squares, float mean) {
  Vec sum = same(0);
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) {
    const Vec v = load(x + i) - mean;
    sum += squares ? v * v : v;
  }
  float all = total(sum);
  for (; i < width; i++) {
    const float v = x[i] - mean;
    all += squares ? v * v : v;
  }
  return all;
}

void norm(const NormWeights& norm, const float* x, float* y, int64_t rows, int64_t width) {
  const float size = static_cast<float>(width);
  for (int64_t row = 0; row < rows; row++, x += width, y += width) {
    const float mean = norm.kind == 1 ? row_sum(x, width, false, 0) / size : 0;
    const float scale = 1.0f / __builtin_sqrtf(row_sum(x, width, true, mean) / size + norm.eps);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
      const Vec scaled = (load(x + i) - mean) * scale * load(norm.weight + i);
      store(y + i, norm.bias == nullptr ? scaled : scaled + load(norm.bias + i));
    }
    for (; i < width; i++) y[i] = (x[i] - mean) * scale * norm.weight[i] + (norm.bias == nullptr ? 0 : norm.bias[i]);
  }
}

void gate(float* x, int64_t rows, int64_t width) {
  for (int64_t row = 0; row < rows; row++, x += 2 * width)
    for (int64_t i = 0; i < width; i += LANES) {
      const int64_t columns = width - i;
      const Vec left = load_some(x + i, columns), right = load_some(x + width + i, columns);
      store_some(x + i, activated(left, SILU) * right, columns);
    }
}

void rotate(float* x, int64_t heads, int64_t width, bool halves, const float* sines, const float* cosines) {
  const int64_t pairs = width / 2, step = halves ? 1 : 2, other = halves ? pairs : 1;
  for (int64_t head = 0; head < heads; head++, x += width)
    for (int64_t pair = 0; pair < pairs; pair++) {
      float *a = x + pair * step, *b = a + other;
      const float first = *a, second = *b;
      *a = first * cosines[pair] - second * sines[pair];
      *b = first * sines[pair] + second * cosines[pair];
    }
}

INLINE float dot(const float* x, const float* y, int64_t width) {
  Vec sum = same(0);
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) sum += load(x + i) * load(y + i);
  float all = total(sum);
  for (; i < width; i++) all += x[i] * y[i];
  return all;
}

// Turns scores into weights. The room after them is filled up to a whole vector.
INLINE void softmax(float* scores, int64_t count) {
  for (int64_t i = count; i % LANES; i++) scores[i] = -__builtin_inff();
  Vec most = load(scores), sum = same(0);
  for (int64_t i = LANES; i < count; i += LANES) most = larger(load(scores + i), most);
  const float top = largest(most);
  for (int64_t i = 0; i < count; i += LANES) {
    const Vec power = exponential(load(scores + i) - top);
    store(scores + i, power);
    sum += power;
  }
  const float scale = 1.0f / total(sum);
  for (int64_t i = 0; i < count; i += LANES) store(scores + i, load(scores + i) * scale);
}

// The mixture of PARTS vectors of columns, from column i on.
template <int PARTS>
INLINE void mix_columns(const Query& q, const float* values, int64_t i, int64_t width, float* context) {
  Vec sum[PARTS];
  for (int part = 0; part < PARTS; part++) sum[part] = same(0);
  for (int64_t j = q.first; j < q.last; j++) {
    const float* value = values + (q.slots == nullptr ? j : q.slots[j]) * q.value_row + i;
    const Vec weight = same(q.scores[j - q.first]);
    for (int part = 0; part < PARTS; part++)
      sum[part] += (PARTS == 1 ? load_some(value, width - i) : load(value + part * LANES)) * weight;
  }
  for (int part = 0; part < PARTS; part++) store_some(context + i + part * LANES, sum[part], width - i - part * LANES);
}

INLINE void mix(const Query& q, const float* values, int64_t width, float* context) {
  int64_t i = 0;
  for (; i + 4 * LANES <= width; i += 4 * LANES) mix_columns<4>(q, values, i, width, context);
  for (; i < width; i += LANES) mix_columns<1>(q, values, i, width, context);
}

void attend(const Heads& h, const Query& q) {
  const int64_t count = q.last - q.first;
  if (count <= 0) {
    __builtin_memset(q.context, 0, static_cast<size_t>(h.heads * h.value_width) * sizeof(float));
    return;
  }
  for (int64_t head = 0; head < h.heads; head++) {
    const float* query = q.query + head * h.key_width;
    const float* keys = q.keys + head / (h.heads / h.key_groups) * h.key_width;
    const float* values = q.values + head / (h.heads / h.value_groups) * h.value_width;
    for (int64_t j = q.first; j < q.last; j++) {
      const int64_t slot = q.slots == nullptr ? j : q.slots[j], distance = j < q.position ? q.position - j : j - q.position;
      const float score = dot(query, keys + slot * q.key_row, h.key_width) * h.scale;
      q.scores[j - q.first] = h.slopes == nullptr ? score : score - h.slopes[head] * static_cast<float>(distance);
    }
    softmax(q.scores, count);
    if (q.weights != nullptr)
      __builtin_memcpy(q.weights + head * q.weights_head + q.first, q.scores, static_cast<size_t>(count) * sizeof(float));
    mix(q, values, h.value_width, q.context + head * h.value_width);
  }
}

}  // namespace

extern const EngineKernels engine_kernels = {product, norm, gate, rotate, attend};

}  // namespace regard::ISA
