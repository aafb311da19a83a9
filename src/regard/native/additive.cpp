// Fused additive attention (Bahdanau et al. 2015): softmax over j of Σ_d v_d tanh(q_id + k_jd), dropout, mixture of values.
//
// tanh(a + b) = 1 − 2 / (1 + e^2a e^2b), so the exponentials are those of queries and keys alone, O(L·d), and the inner loop
// over i, j, d needs products and one division for four of them. It holds while no product of four denominators overflows. A
// block of keys where |q| + |k| exceeds REACH is computed with an exact tanh instead.
//
// The scores exist for TILE queries at a time. The backward pass computes them again, unless the forward pass kept the weights. The queries of a lead are divided into
// parts, each with sums of its own for the gradients of keys and values; the sums are added in a fixed order. The division
// depends on the number of queries only: results do not depend on the number of threads, nor on what else is in the batch.
#define REGARD_WIDE
#include <cstdlib>

#include "kernels.h"
#include "pool.h"
#include "product.h"

namespace regard::ISA {
namespace {

constexpr int64_t TILE = 12;      // queries: two groups of product_rows<6>
constexpr int64_t BLOCK = 2 * LANES;  // keys
constexpr int64_t PART = 96;      // queries of a part, at least
constexpr int64_t MOST_PARTS = 8;
constexpr int64_t WAVE = 16;      // parts that have sums at a time
constexpr float REACH = 10.0f;
constexpr int64_t FEW_QUERIES = 2;  // exponentials of the keys pay off above that
const float NOTHING = -__builtin_inff();

// Sizes of the padded arrays.
struct Sizes {
  int64_t keys, width, values, queries, parts, part;

  explicit Sizes(const regard_additive& p)
      : keys(round_up(p.num_keys, BLOCK)), width(round_up(p.width, LANES)), values(round_up(p.value_width, 2 * LANES)) {
    parts = (p.num_queries + PART - 1) / PART;
    parts = parts > MOST_PARTS ? MOST_PARTS : parts;
    part = round_up((p.num_queries + parts - 1) / parts, TILE);
    parts = (p.num_queries + part - 1) / part;
    queries = p.num_queries;
  }
  int64_t slices() const { return width / LANES; }
};

// What is computed once per lead of keys and of values.
struct Prepared {
  float* powers;    // (width, keys) e^2k
  float* sliced;    // (slices, keys, LANES) e^2k
  float* raw;       // (slices, keys, LANES) k
  float* reach;     // (keys / BLOCK) largest |k| of a block
  float* values;    // (num_keys, values)
  float* turned;    // (values, keys): the values, transposed
};

struct Buffer {
  float* at;
  explicit Buffer(int64_t size) : at(static_cast<float*>(std::malloc(static_cast<size_t>(size) * sizeof(float)))) {
    if (at == nullptr) std::abort();
  }
  ~Buffer() { std::free(at); }
  Buffer(const Buffer&) = delete;
  float* take(int64_t size) {
    float* taken = at + used;
    used += size;
    return taken;
  }
  int64_t used = 0;
};

INLINE int64_t index(const int64_t* of, int64_t lead) { return of == nullptr ? lead : of[lead]; }

// Copies a row of `size` numbers and fills it up with zeros.
INLINE void copy_padded(float* to, const float* from, int64_t size, int64_t padded) {
  __builtin_memcpy(to, from, static_cast<size_t>(size) * sizeof(float));
  for (int64_t i = size; i < padded; i++) to[i] = 0;
}

void prepare_key(const regard_additive& p, const Sizes& s, int64_t number, const Prepared& to, bool backward) {
  const float* key = p.key + number * p.num_keys * p.width;
  for (int64_t block = 0; block < s.keys / BLOCK; block++) {
    Vec most = same(0);
    for (int64_t j = block * BLOCK; j < (block + 1) * BLOCK; j++)
      for (int64_t d = 0; d < s.width; d += LANES) {
        float row[LANES] = {0};
        if (j < p.num_keys) {
          const int64_t left = p.width - d;
          __builtin_memcpy(row, key + j * p.width + d, static_cast<size_t>(left < LANES ? left : LANES) * sizeof(float));
        }
        const Vec x = load(row), power = exponential(x * 2.0f);
        most = larger(most, absolute(x));
        const int64_t at = (d / LANES * s.keys + j) * LANES;
        store(to.raw + at, x);
        if (backward) store(to.sliced + at, power);
        for (int64_t lane = 0; lane < LANES; lane++) to.powers[(d + lane) * s.keys + j] = power[lane];
      }
    to.reach[block] = largest(most);
  }
}

void prepare_value(const regard_additive& p, const Sizes& s, int64_t number, const Prepared& to, bool backward) {
  const float* value = p.value + number * p.num_keys * p.value_width;
  for (int64_t j = 0; j < p.num_keys; j++) copy_padded(to.values + j * s.values, value + j * p.value_width, p.value_width, s.values);
  if (!backward) return;
  for (int64_t d = 0; d < s.values; d++)
    for (int64_t j = 0; j < s.keys; j++)
      to.turned[d * s.keys + j] = d < p.value_width && j < p.num_keys ? value[j * p.value_width + d] : 0;
}

// The prepared keys and values of all leads, in one buffer.
class Leads {
 public:
  Leads(const regard_additive& p, const Sizes& s, bool backward)
      : p_(p), s_(s), backward_(backward), buffer_(p.key_leads * key_size() + p.value_leads * value_size()) {
    parallel(p.key_leads + p.value_leads, [&](int64_t number) {
      if (number < p.key_leads) {
        prepare_key(p, s, number, of(number, 0), backward);
      } else {
        prepare_value(p, s, number - p.key_leads, of(0, number - p.key_leads), backward);
      }
    });
  }

  Prepared at(int64_t lead) const { return of(index(p_.key_of, lead), index(p_.value_of, lead)); }

 private:
  int64_t key_size() const { return (backward_ ? 3 : 2) * s_.width * s_.keys + s_.keys / BLOCK; }
  int64_t value_size() const { return p_.num_keys * s_.values + (backward_ ? s_.values * s_.keys : 0); }

  Prepared of(int64_t key, int64_t value) const {
    float* k = buffer_.at + key * key_size();
    float* v = buffer_.at + p_.key_leads * key_size() + value * value_size();
    const int64_t one = s_.width * s_.keys;
    return {k, k + 2 * one, k + one, k + key_size() - s_.keys / BLOCK, v, v + p_.num_keys * s_.values};
  }

  const regard_additive& p_;
  const Sizes& s_;
  bool backward_;
  Buffer buffer_;
};

// --- scores of a tile ----------------------------------------------------------------------------------------------------

struct Tile {
  int64_t lead, first, rows;
  float *raw, *powers;  // (TILE, width): the queries, e^2q
  float* scores;        // (TILE, keys), then the weights
  float reach;          // largest |q|
  uint8_t* used;        // (keys / BLOCK): whether any query of the tile may attend to any key of the block
};

INLINE const uint8_t* allowed(const regard_additive& p, int64_t lead, int64_t row) {
  return p.allow + index(p.allow_of, lead) * p.allow_lead + row * p.allow_row;
}

void open_tile(const regard_additive& p, const Sizes& s, Tile& tile) {
  Vec most = same(0);
  for (int64_t row = 0; row < TILE; row++) {
    float* raw = tile.raw + row * s.width;
    if (row < tile.rows) {
      copy_padded(raw, p.query + (index(p.query_of, tile.lead) * p.num_queries + tile.first + row) * p.width, p.width, s.width);
    } else {
      __builtin_memset(raw, 0, static_cast<size_t>(s.width) * sizeof(float));
    }
    for (int64_t d = 0; d < s.width; d += LANES) {
      const Vec x = load(raw + d);
      most = larger(most, absolute(x));
      store(tile.powers + row * s.width + d, exponential(x * 2.0f));
    }
  }
  tile.reach = largest(most);
  for (int64_t block = 0; block < s.keys / BLOCK; block++) {
    const int64_t begin = block * BLOCK, end = begin + BLOCK < p.num_keys ? begin + BLOCK : p.num_keys;
    bool used = p.allow == nullptr;
    for (int64_t row = 0; row < tile.rows && !used; row++) {
      const uint8_t* allow = allowed(p, tile.lead, tile.first + row);
      for (int64_t j = begin; j < end; j++) used |= allow[j * p.allow_column] != 0;
      if (p.allow_row == 0) break;
    }
    tile.used[block] = used;
  }
}

// Scores of ROWS queries and one block of keys by products of exponentials.
template <int ROWS>
INLINE void score_block(const float* query, const float* key, const float* v, int64_t width, int64_t keys, float sum_v, float* out) {
  Vec sum[ROWS][2];
  for (int row = 0; row < ROWS; row++) sum[row][0] = sum[row][1] = same(0);
  for (int64_t d = 0; d < width; d += 4) {
    const Vec v0 = same(v[d]), v1 = same(v[d + 1]), v2 = same(v[d + 2]), v3 = same(v[d + 3]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
      const float* k = key + d * keys + half * LANES;
      const Vec k0 = load(k), k1 = load(k + keys), k2 = load(k + 2 * keys), k3 = load(k + 3 * keys);
#pragma GCC unroll 2
      for (int row = 0; row < ROWS; row++) {
        const float* q = query + row * width + d;
        const Vec a0 = k0 * q[0] + 1.0f, a1 = k1 * q[1] + 1.0f, a2 = k2 * q[2] + 1.0f, a3 = k3 * q[3] + 1.0f;
        const Vec a01 = a0 * a1, a23 = a2 * a3;
        const Vec n01 = v0 * a1 + v1 * a0, n23 = v2 * a3 + v3 * a2;
        sum[row][half] += (n01 * a23 + n23 * a01) / (a01 * a23);
      }
    }
  }
  for (int row = 0; row < ROWS; row++)
    for (int half = 0; half < 2; half++) store(out + row * keys + half * LANES, sum_v - 2.0f * sum[row][half]);
}

// The score of one query and one key with an exact tanh.
INLINE float exact_score(const float* query, const float* key, int64_t key_step, const float* v, int64_t width) {
  Vec sum = same(0);
  for (int64_t d = 0; d < width; d += LANES)
    sum += load(v + d) * hyperbolic_tangent(load(query + d) + load(key + d / LANES * key_step));
  return total(sum);
}

void score_tile(const Sizes& s, const Prepared& prepared, const float* v, float sum_v, Tile& tile) {
  for (int64_t block = 0; block < s.keys / BLOCK; block++) {
    const int64_t j = block * BLOCK;
    if (!tile.used[block]) continue;
    if (tile.reach + prepared.reach[block] <= REACH) {
      for (int64_t row = 0; row < tile.rows; row += 2)
        score_block<2>(tile.powers + row * s.width, prepared.powers + j, v, s.width, s.keys, sum_v, tile.scores + row * s.keys + j);
    } else {
      for (int64_t row = 0; row < tile.rows; row++)
        for (int64_t i = j; i < j + BLOCK; i++)
          tile.scores[row * s.keys + i] =
              exact_score(tile.raw + row * s.width, prepared.raw + i * LANES, s.keys * LANES, v, s.width);
    }
  }
}

// Replaces scores that no query may see by −∞.
void mask_row(const regard_additive& p, const Sizes& s, const uint8_t* used, int64_t lead, int64_t row, float* scores) {
  for (int64_t block = 0; block < s.keys / BLOCK; block++) {
    if (used[block]) continue;
    for (int64_t j = block * BLOCK; j < (block + 1) * BLOCK; j++) scores[j] = NOTHING;
  }
  if (p.allow != nullptr) {
    const uint8_t* allow = allowed(p, lead, row);
    for (int64_t j = 0; j < p.num_keys; j++) scores[j] = allow[j * p.allow_column] ? scores[j] : NOTHING;
  }
  for (int64_t j = p.num_keys; j < s.keys; j++) scores[j] = NOTHING;
}

// --- dropout -------------------------------------------------------------------------------------------------------------

INLINE uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Multiplies by 0 or 1 / (1 − dropout). The numbers are a function of the seed and of the place: the backward pass draws the same.
INLINE void drop_row(const regard_additive& p, int64_t lead, int64_t row, float* x, int64_t size) {
  const uint64_t at = static_cast<uint64_t>(lead * p.num_queries + row);
  uint32_t base = mixed(static_cast<uint32_t>(p.seed) ^ mixed(static_cast<uint32_t>(at)));
  base = mixed(base ^ static_cast<uint32_t>(p.seed >> 32) ^ mixed(static_cast<uint32_t>(at >> 32)));
  const uint32_t limit = static_cast<uint32_t>(static_cast<double>(p.dropout) * 4294967296.0);
  const Vec scale = same(1.0f / (1.0f - p.dropout));
  Bits place;
  for (int64_t lane = 0; lane < LANES; lane++) place[lane] = static_cast<uint32_t>(lane);
  for (int64_t j = 0; j < size; j += LANES, place += LANES) {
    Bits bits = place * 0x9e3779b1u + base;
    bits = (bits ^ (bits >> 16)) * 0x7feb352du;
    bits = (bits ^ (bits >> 15)) * 0x846ca68bu;
    bits ^= bits >> 16;
    store(x + j, bits < limit ? same(0) : load(x + j) * scale);
  }
}

// --- forward -------------------------------------------------------------------------------------------------------------

// Turns scores into weights; returns the logarithm of the sum of their exponentials, +∞ if there is nothing to attend to.
float softmax_row(float* x, int64_t size) {
  Vec most = same(NOTHING), sum = same(0);
  for (int64_t j = 0; j < size; j += LANES) most = larger(most, load(x + j));
  const float peak = largest(most);
  if (peak == NOTHING) {
    __builtin_memset(x, 0, static_cast<size_t>(size) * sizeof(float));
    return __builtin_inff();
  }
  for (int64_t j = 0; j < size; j += LANES) {
    const Vec y = exponential(load(x + j) - peak);
    sum += y;
    store(x + j, y);
  }
  const float all = total(sum);
  for (int64_t j = 0; j < size; j += LANES) store(x + j, load(x + j) * (1.0f / all));
  return peak + __builtin_logf(all);
}

void close_tile(const regard_additive& p, const Sizes& s, const float* values, Tile& tile, float* context) {
  for (int64_t row = 0; row < tile.rows; row++) {
    const int64_t at = tile.lead * p.num_queries + tile.first + row;
    float* x = tile.scores + row * s.keys;
    mask_row(p, s, tile.used, tile.lead, tile.first + row, x);
    p.log_sum[at] = softmax_row(x, s.keys);
    if (p.weights != nullptr) __builtin_memcpy(p.weights + at * p.num_keys, x, static_cast<size_t>(p.num_keys) * sizeof(float));
    if (p.dropout > 0) drop_row(p, tile.lead, tile.first + row, x, s.keys);
  }
  if (p.context == nullptr) return;
  product<false>(context, s.values, {tile.scores, s.keys, 1}, values, s.values, tile.rows, s.values, p.num_keys);
  for (int64_t row = 0; row < tile.rows; row++)
    __builtin_memcpy(p.context + (tile.lead * p.num_queries + tile.first + row) * p.value_width, context + row * s.values,
                     static_cast<size_t>(p.value_width) * sizeof(float));
}

Tile take_tile(const Sizes& s, float*& scratch) {
  Tile tile{};
  tile.raw = scratch;
  tile.powers = tile.raw + TILE * s.width;
  tile.scores = tile.powers + TILE * s.width;
  tile.used = reinterpret_cast<uint8_t*>(tile.scores + TILE * s.keys);
  scratch = tile.scores + TILE * s.keys + s.keys / BLOCK;
  return tile;
}

int64_t tile_size(const Sizes& s) { return TILE * (2 * s.width + s.keys) + s.keys / BLOCK; }

float pad_v(const regard_additive& p, const Sizes& s, float* v) {
  copy_padded(v, p.v, p.width, s.width);
  float sum = 0;
  for (int64_t d = 0; d < p.width; d++) sum += v[d];
  return sum;
}

// --- backward ------------------------------------------------------------------------------------------------------------

// Sums of one part: without the factor 4 v, which is the same for all of them.
struct Sums {
  float *key, *value, *v;  // (slices, keys, LANES), (keys, values), (width)
};

int64_t sums_size(const Sizes& s) { return s.keys * (s.width + s.values) + s.width; }

Sums sums_at(const Sizes& s, float* at) { return {at, at + s.keys * s.width, at + s.keys * (s.width + s.values)}; }

// Adds what ROWS queries and the keys of one block contribute, eight hidden units at a time. With r = 1 / (1 + e^2q e^2k):
// tanh = 1 − 2r, and its derivative is 4 r (1 − r).
template <int ROWS>
INLINE void block_backward(const Vec* power, const float* key, const float* gradient, int64_t keys, Vec* query_sum, Vec& v_sum,
                           float* key_sum) {
  for (int64_t j = 0; j < BLOCK; j++) {
    const Vec k = load(key + j * LANES);
    Vec both = load(key_sum + j * LANES);
#pragma GCC unroll 2
    for (int row = 0; row < ROWS; row += 2) {
      const Vec a0 = power[row] * k + 1.0f, a1 = power[row + 1] * k + 1.0f, r = 1.0f / (a0 * a1);
      const Vec r0 = r * a1, r1 = r * a0;
      const Vec h0 = r0 * gradient[row * keys + j], h1 = r1 * gradient[(row + 1) * keys + j];
      const Vec t0 = h0 - h0 * r0, t1 = h1 - h1 * r1;
      query_sum[row] += t0;
      query_sum[row + 1] += t1;
      v_sum += h0 + h1;
      both += t0 + t1;
    }
    store(key_sum + j * LANES, both);
  }
}

INLINE void exact_backward(const float* query, const float* key, const float* gradient, Vec& query_sum, Vec& v_sum, float* key_sum) {
  for (int64_t j = 0; j < BLOCK; j++) {
    const Vec y = hyperbolic_tangent(load(query) + load(key + j * LANES));
    const Vec t = (1.0f - y * y) * (0.25f * gradient[j]);
    query_sum += t;
    v_sum += (1.0f - y) * (0.5f * gradient[j]);
    store(key_sum + j * LANES, load(key_sum + j * LANES) + t);
  }
}

// The gradients of the queries of a tile, and its share of those of keys and v. Rows beyond the last have the gradient 0.
void scores_backward(const regard_additive& p, const Sizes& s, const Prepared& prepared, const float* v, const Tile& tile,
                     const float* gradient, const Sums& sums) {
  constexpr int ROWS = 4;
  for (int64_t slice = 0; slice < s.slices(); slice++) {
    const int64_t first = slice * s.keys * LANES;
    for (int64_t row = 0; row < tile.rows; row += ROWS) {
      Vec power[ROWS], query_sum[ROWS], v_sum = same(0);  // a sum of its own, because millions of terms add up to v's
      for (int i = 0; i < ROWS; i++) {
        power[i] = load(tile.powers + (row + i) * s.width + slice * LANES);
        query_sum[i] = same(0);
      }
      for (int64_t block = 0; block < s.keys / BLOCK; block++) {
        if (!tile.used[block]) continue;
        const int64_t at = first + block * BLOCK * LANES;
        const float* g = gradient + row * s.keys + block * BLOCK;
        if (tile.reach + prepared.reach[block] <= REACH) {
          block_backward<ROWS>(power, prepared.sliced + at, g, s.keys, query_sum, v_sum, sums.key + at);
        } else {
          for (int i = 0; i < ROWS; i++)
            exact_backward(tile.raw + (row + i) * s.width + slice * LANES, prepared.raw + at, g + i * s.keys, query_sum[i], v_sum,
                           sums.key + at);
        }
      }
      for (int i = 0; i < ROWS && row + i < tile.rows; i++) {
        float out[LANES];
        store(out, query_sum[i] * load(v + slice * LANES) * 4.0f);
        const int64_t left = p.width - slice * LANES;
        __builtin_memcpy(p.query_gradient + (tile.lead * p.num_queries + tile.first + row + i) * p.width + slice * LANES, out,
                         static_cast<size_t>(left < LANES ? left : LANES) * sizeof(float));
      }
      store(sums.v + slice * LANES, load(sums.v + slice * LANES) + v_sum);
    }
  }
}

// The weights again, the gradient of the scores, and the share of the gradient of the values.
void weights_backward(const regard_additive& p, const Sizes& s, const Prepared& prepared, Tile& tile, float* out_gradient,
                       float* gradient, const Sums& sums) {
  for (int64_t row = 0; row < TILE; row++) {
    float* to = out_gradient + row * s.values;
    const int64_t at = tile.lead * p.num_queries + tile.first + row;
    if (row < tile.rows) {
      copy_padded(to, p.context_gradient + at * p.value_width, p.value_width, s.values);
    } else {
      __builtin_memset(to, 0, static_cast<size_t>(s.values) * sizeof(float));
      __builtin_memset(gradient + row * s.keys, 0, static_cast<size_t>(s.keys) * sizeof(float));
    }
  }
  product<false>(gradient, s.keys, {out_gradient, s.values, 1}, prepared.turned, s.keys, tile.rows, s.keys, p.value_width);
  for (int64_t row = 0; row < tile.rows; row++) {
    const int64_t at = tile.lead * p.num_queries + tile.first + row;
    float *w = tile.scores + row * s.keys, *g = gradient + row * s.keys;
    if (p.weights != nullptr) {
      copy_padded(w, p.weights + at * p.num_keys, p.num_keys, s.keys);
    } else {
      mask_row(p, s, tile.used, tile.lead, tile.first + row, w);
      for (int64_t j = 0; j < s.keys; j += LANES) store(w + j, exponential(load(w + j) - p.log_sum[at]));
    }
    if (p.dropout > 0) drop_row(p, tile.lead, tile.first + row, g, s.keys);
    Vec inner = same(0);
    for (int64_t j = 0; j < s.keys; j += LANES) inner += load(w + j) * load(g + j);
    const float mean = total(inner);
    for (int64_t j = 0; j < s.keys; j += LANES) store(g + j, load(w + j) * (load(g + j) - mean));
    if (p.dropout > 0) drop_row(p, tile.lead, tile.first + row, w, s.keys);
  }
  product<true>(sums.value, s.values, {tile.scores, 1, s.keys}, out_gradient, s.values, p.num_keys, s.values, tile.rows);
}

// Adds up the parts of a lead and writes the gradients of its keys, values and v.
void finish_lead(const regard_additive& p, const Sizes& s, const float* v, int64_t lead, float* first) {
  const Sums sums = sums_at(s, first);
  for (int64_t part = 1; part < s.parts; part++) {
    const float* other = first + part * sums_size(s);
    for (int64_t i = 0; i < sums_size(s); i++) first[i] += other[i];
  }
  for (int64_t j = 0; j < p.num_keys; j++)
    for (int64_t d = 0; d < p.width; d++)
      p.key_gradient[(lead * p.num_keys + j) * p.width + d] =
          4.0f * v[d] * sums.key[(d / LANES * s.keys + j) * LANES + d % LANES];
  for (int64_t j = 0; j < p.num_keys; j++)
    __builtin_memcpy(p.value_gradient + (lead * p.num_keys + j) * p.value_width, sums.value + j * s.values,
                     static_cast<size_t>(p.value_width) * sizeof(float));
  for (int64_t d = 0; d < p.width; d++) p.v_gradient[lead * p.width + d] = -2.0f * sums.v[d];
}

}  // namespace

// --- one query, or two ---------------------------------------------------------------------------------------------------

// What one query needs, in the scratch memory of a thread. The keys are used as they are: preparing them would not pay off.
struct Single {
  float *v, *query, *key, *weights, *gradient, *sum, *v_sum;
  uint8_t* used;

  explicit Single(const regard_additive& p, const Sizes& s) {
    float* scratch = regard::scratch(5 * s.width + 3 * s.keys);
    float** parts[] = {&v, &query, &key, &sum, &v_sum};
    for (float** part : parts) {
      *part = scratch;
      scratch += s.width;
    }
    weights = scratch;
    gradient = weights + s.keys;
    used = reinterpret_cast<uint8_t*>(gradient + s.keys);
    pad_v(p, s, v);
    __builtin_memset(used, 1, static_cast<size_t>(s.keys / BLOCK));
  }
};

// A key with its width filled up.
INLINE const float* padded_key(const regard_additive& p, const Sizes& s, const Single& own, const float* key) {
  if (s.width == p.width) return key;
  copy_padded(own.key, key, p.width, s.width);
  return own.key;
}

static float single_weights(const regard_additive& p, const Sizes& s, const Single& own, const float* key, int64_t lead,
                            int64_t row) {
  const uint8_t* allow = p.allow == nullptr ? nullptr : allowed(p, lead, row);
  for (int64_t j = 0; j < p.num_keys; j++)
    if (allow == nullptr || allow[j * p.allow_column])
      own.weights[j] = exact_score(own.query, padded_key(p, s, own, key + j * p.width), LANES, own.v, s.width);
  mask_row(p, s, own.used, lead, row, own.weights);
  return softmax_row(own.weights, s.keys);
}

static void few_forward(const regard_additive& p, const Sizes& s) {
  parallel(p.leads, [&](int64_t lead) {
    const Single own(p, s);
    const float* key = p.key + index(p.key_of, lead) * p.num_keys * p.width;
    for (int64_t row = 0; row < p.num_queries; row++) {
      const int64_t at = lead * p.num_queries + row;
      copy_padded(own.query, p.query + (index(p.query_of, lead) * p.num_queries + row) * p.width, p.width, s.width);
      p.log_sum[at] = single_weights(p, s, own, key, lead, row);
      if (p.weights != nullptr)
        __builtin_memcpy(p.weights + at * p.num_keys, own.weights, static_cast<size_t>(p.num_keys) * sizeof(float));
      if (p.dropout > 0) drop_row(p, lead, row, own.weights, s.keys);
      if (p.context == nullptr) continue;
      const float* value = p.value + index(p.value_of, lead) * p.num_keys * p.value_width;
      float* context = p.context + at * p.value_width;
      __builtin_memset(context, 0, static_cast<size_t>(p.value_width) * sizeof(float));
      for (int64_t j = 0; j < p.num_keys; j++, value += p.value_width) {
        const float weight = own.weights[j];
        if (weight == 0) continue;
        for (int64_t d = 0; d < p.value_width; d++) context[d] += weight * value[d];
      }
    }
  });
}

// Adds to the gradients of the keys and values of a lead, and to those of the query and v in `own`.
static void single_backward(const regard_additive& p, const Sizes& s, const Single& own, int64_t lead, int64_t row) {
  const int64_t at = lead * p.num_queries + row;
  const float* upstream = p.context_gradient + at * p.value_width;
  const float* value = p.value + index(p.value_of, lead) * p.num_keys * p.value_width;
  const float* key = p.key + index(p.key_of, lead) * p.num_keys * p.width;
  for (int64_t j = 0; j < p.num_keys; j++) own.gradient[j] = inner_product(upstream, value + j * p.value_width, p.value_width);
  for (int64_t j = p.num_keys; j < s.keys; j++) own.gradient[j] = 0;
  if (p.dropout > 0) drop_row(p, lead, row, own.gradient, s.keys);
  const float mean = inner_product(own.weights, own.gradient, s.keys);
  for (int64_t j = 0; j < p.num_keys; j++) own.gradient[j] = own.weights[j] * (own.gradient[j] - mean);
  if (p.dropout > 0) drop_row(p, lead, row, own.weights, s.keys);
  for (int64_t j = 0; j < p.num_keys; j++) {
    float* d_value = p.value_gradient + (lead * p.num_keys + j) * p.value_width;
    const float weight = own.weights[j], g = own.gradient[j];
    for (int64_t d = 0; d < p.value_width; d++) d_value[d] += weight * upstream[d];
    if (g == 0) continue;
    const float* k = padded_key(p, s, own, key + j * p.width);
    float* d_key = p.key_gradient + (lead * p.num_keys + j) * p.width;
    for (int64_t d = 0; d < s.width; d += LANES) {
      const Vec y = hyperbolic_tangent(load(own.query + d) + load(k + d)), t = (1.0f - y * y) * g * load(own.v + d);
      store(own.sum + d, load(own.sum + d) + t);
      store(own.v_sum + d, load(own.v_sum + d) + y * g);
      for (int64_t lane = 0; lane < LANES && d + lane < p.width; lane++) d_key[d + lane] += t[lane];
    }
  }
}

static void few_backward(const regard_additive& p, const Sizes& s) {
  const size_t row_size = static_cast<size_t>(p.width) * sizeof(float);
  parallel(p.leads, [&](int64_t lead) {
    const Single own(p, s);
    const float* key = p.key + index(p.key_of, lead) * p.num_keys * p.width;
    const int64_t keys = p.num_keys;
    __builtin_memset(p.key_gradient + lead * keys * p.width, 0, static_cast<size_t>(keys) * row_size);
    __builtin_memset(p.value_gradient + lead * keys * p.value_width, 0, static_cast<size_t>(keys * p.value_width) * sizeof(float));
    __builtin_memset(own.v_sum, 0, static_cast<size_t>(s.width) * sizeof(float));
    for (int64_t row = 0; row < p.num_queries; row++) {
      const int64_t at = lead * p.num_queries + row;
      __builtin_memset(own.sum, 0, static_cast<size_t>(s.width) * sizeof(float));
      copy_padded(own.query, p.query + (index(p.query_of, lead) * p.num_queries + row) * p.width, p.width, s.width);
      if (p.weights != nullptr) {
        copy_padded(own.weights, p.weights + at * keys, keys, s.keys);
      } else {
        single_weights(p, s, own, key, lead, row);
      }
      single_backward(p, s, own, lead, row);
      __builtin_memcpy(p.query_gradient + at * p.width, own.sum, row_size);
    }
    __builtin_memcpy(p.v_gradient + lead * p.width, own.v_sum, row_size);
  });
}

// --- the kernels ---------------------------------------------------------------------------------------------------------

static void additive_forward(const regard_additive& p) {
  const Sizes s(p);
  if (p.num_queries <= FEW_QUERIES) return few_forward(p, s);
  const Leads leads(p, s, false);
  const int64_t tiles = (p.num_queries + TILE - 1) / TILE;
  parallel(p.leads * tiles, [&](int64_t number) {
    float* scratch = regard::scratch(tile_size(s) + s.width + TILE * s.values);
    Tile tile = take_tile(s, scratch);
    float *v = scratch, *context = scratch + s.width;
    tile.lead = number / tiles;
    tile.first = number % tiles * TILE;
    tile.rows = p.num_queries - tile.first < TILE ? p.num_queries - tile.first : TILE;
    const Prepared prepared = leads.at(tile.lead);
    const float sum_v = pad_v(p, s, v);
    open_tile(p, s, tile);
    score_tile(s, prepared, v, sum_v, tile);
    close_tile(p, s, prepared.values, tile, context);
  });
}

static void additive_backward(const regard_additive& p) {
  const Sizes s(p);
  if (p.num_queries <= FEW_QUERIES) return few_backward(p, s);
  const Leads leads(p, s, true);
  const int64_t in_wave = WAVE > s.parts ? WAVE / s.parts : 1;
  Buffer all_sums((in_wave < p.leads ? in_wave : p.leads) * s.parts * sums_size(s));
  for (int64_t first = 0; first < p.leads; first += in_wave) {
    const int64_t count = p.leads - first < in_wave ? p.leads - first : in_wave;
    parallel(count * s.parts, [&](int64_t number) {
      float* scratch = regard::scratch(tile_size(s) + s.width + TILE * (s.values + s.keys));
      float* own = all_sums.at + number * sums_size(s);
      __builtin_memset(own, 0, static_cast<size_t>(sums_size(s)) * sizeof(float));
      const Sums sums = sums_at(s, own);
      Tile tile = take_tile(s, scratch);
      float *v = scratch, *out_gradient = v + s.width, *gradient = out_gradient + TILE * s.values;
      const float sum_v = pad_v(p, s, v);
      tile.lead = first + number / s.parts;
      const Prepared prepared = leads.at(tile.lead);
      const int64_t begin = number % s.parts * s.part;
      const int64_t end = begin + s.part < p.num_queries ? begin + s.part : p.num_queries;
      for (tile.first = begin; tile.first < end; tile.first += TILE) {
        tile.rows = end - tile.first < TILE ? end - tile.first : TILE;
        open_tile(p, s, tile);
        if (p.weights == nullptr) score_tile(s, prepared, v, sum_v, tile);
        weights_backward(p, s, prepared, tile, out_gradient, gradient, sums);
        scores_backward(p, s, prepared, v, tile, gradient, sums);
      }
    });
    parallel(count, [&](int64_t number) {
      finish_lead(p, s, p.v, first + number, all_sums.at + number * s.parts * sums_size(s));
    });
  }
}

extern const Kernels kernels = {additive_forward, additive_backward};

}  // namespace regard::ISA
