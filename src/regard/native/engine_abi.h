// The C ABI of the native engine: the encoder and the steps of a Transformer. engine.py declares the same to ctypes.
#pragma once
#include "abi.h"

// y = x Wᵀ + b. weight (outputs, inputs); null: there is no such layer. bias: null for none.
struct regard_linear {
  const float *weight, *bias;
  int64_t inputs, outputs;
};

// kind: 0 none, 1 LayerNorm, 2 RMSNorm. bias: null for RMSNorm.
struct regard_norm {
  const float *weight, *bias;
  int64_t kind;
  float eps;
};

// key_width, value_width: of one head. A value without a weight: every head mixes the attended states themselves.
// rotary: 0 none, 1 interleaved pairs, 2 halves. scale: of the dot product. slopes: ALiBi's, one per head; null for none.
struct regard_attention {
  regard_linear query, key, value, output;
  int64_t heads, kv_heads, key_width, value_width, rotary;
  const float* slopes;
  float scale;
};

// activation: 0 none, 1 ReLU, 2 GELU, 3 GELU by tanh, 4 SiLU, 5 SwiGLU (inner has twice the outputs).
struct regard_layer {
  regard_attention self, cross;  // cross.heads is 0 if there is none
  regard_norm self_norm, cross_norm, feed_norm;
  regard_linear inner, outer;
  int64_t activation;
};

// Token embeddings times token_scale, to which position vectors are added, or appended if position_width < width.
// window: how many positions to either side self-attention reaches; -1 for all.
struct regard_stack {
  const regard_layer* layers;
  int64_t num_layers;
  const float* tokens;  // (vocab, token_width); the engine keeps the address
  int64_t vocab, token_width, position_width, window;
  float token_scale;
  regard_norm embedding_norm, last_norm;
};

struct regard_transformer {
  regard_stack encoder, decoder;
  regard_linear project, output;  // project: what comes before an output matrix of another width
  int64_t width, pre_norm, residual;
};

// Position vectors (count, position_width), and sines and cosines of rotary positions (count, key_width / 2).
struct regard_positions {
  const float *vectors, *sines, *cosines;
  int64_t count;
};

// The results of a call that are errors; 0 is success.
constexpr int REGARD_NO_SUCH_TOKEN = -1, REGARD_NO_MEMORY = -2, REGARD_TOO_FEW_POSITIONS = -3;

struct regard_engine;
struct regard_state;

// Packs the weights. Returns null if there is not enough memory.
REGARD_API regard_engine* regard_engine_new(const regard_transformer* model);
REGARD_API void regard_engine_free(regard_engine* engine);
REGARD_API int64_t regard_engine_nbytes(const regard_engine* engine);

// Encodes sentences. ids: those of all sentences, one after the other, without padding. states: (sum of lengths, width).
// weights: (layers, sentences, heads, longest, longest), filled with zeros before; null: not wanted.
REGARD_API int regard_engine_encode(const regard_engine* engine, const int64_t* ids, const int64_t* lengths, int64_t sentences,
                                    const regard_positions* positions, float* states, float* weights);

// The first State of sentences, with one hypothesis each. states: as `encode` returns them.
REGARD_API regard_state* regard_engine_start(const regard_engine* engine, const float* states, const int64_t* lengths,
                                             int64_t sentences);

// Reads one token per hypothesis, (sentences, hypotheses), and changes the State. logits: (sentences, hypotheses, vocab); null:
// not wanted. self_weights: (layers, sentences, heads, hypotheses, longest target so far, this token included), cross_weights:
// the same with the longest source; filled with zeros before; null: not wanted.
REGARD_API int regard_engine_step(const regard_engine* engine, regard_state* state, const int64_t* ids,
                                  const regard_positions* positions, float* logits, float* self_weights, float* cross_weights);

// Numbers of a State: sentences, hypotheses, longest target, longest source.
REGARD_API void regard_state_sizes(const regard_state* state, int64_t* sizes);
REGARD_API void regard_state_lengths(const regard_state* state, int64_t* lengths);
REGARD_API int64_t regard_state_nbytes(const regard_state* state);

// New States, which share what is not written to; a step copies what it would write to if another State shares it.
// parents: (sentences, hypotheses) of the new State. All return null if there is not enough memory.
REGARD_API regard_state* regard_state_select(const regard_state* state, const int64_t* parents, int64_t hypotheses);
REGARD_API regard_state* regard_state_keep(const regard_state* state, const int64_t* sentences, int64_t count);
REGARD_API regard_state* regard_state_join(const regard_state* const* states, int64_t count);
REGARD_API void regard_state_free(regard_state* state);
