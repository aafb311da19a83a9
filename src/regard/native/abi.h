// The C ABI of the native part. library.py declares the same functions to ctypes.
#pragma once
#include <cstdint>

#define REGARD_API extern "C" __attribute__((visibility("default")))

// A change of any signature below gets the next number; library.py refuses a library with another one.
constexpr int REGARD_ABI = 3;

REGARD_API int regard_abi();

// The instruction set in use: "avx512", "avx2" or "portable".
REGARD_API const char* regard_instruction_set();

// Chooses an instruction set by name. Returns 0, or -1 if this processor or this build does not have it.
REGARD_API int regard_choose(const char* name);

// Runs on at most `threads` threads from now on, the caller included.
REGARD_API void regard_set_threads(int threads);
REGARD_API int regard_threads();

// Gives the address of GOMP_parallel, to share the threads of an OpenMP library that the process uses; null: our own threads.
REGARD_API void regard_use_team(void* run);

// Additive attention. All arrays are contiguous. A lead is one problem of the broadcast leading axes; `x_of` holds the lead of x
// for each of them, or is null if they are the same. Pointers that a function does not need may be null.
struct regard_additive {
  int64_t leads, num_queries, num_keys, width, value_width;
  int64_t key_leads, value_leads;
  const float* query;  // (leads of query, num_queries, width): W_b s
  const float* key;    // (key_leads, num_keys, width): W_c h
  const float* v;      // (width)
  const float* value;  // (value_leads, num_keys, value_width)
  const int64_t *query_of, *key_of, *value_of, *allow_of;
  const uint8_t* allow;  // entry (lead, row, column) at allow_lead * lead + allow_row * row + allow_column * column; null: all
  int64_t allow_lead, allow_row, allow_column;
  uint64_t seed;  // of dropout
  float dropout;
  // forward
  float* context;  // (leads, num_queries, value_width)
  float* weights;  // (leads, num_queries, num_keys), before dropout; null: not wanted, and backward computes them again
  float* log_sum;  // (leads, num_queries): logarithm of the sum of the exponentials; backward reads it
  // backward: gradients per lead
  const float* context_gradient;
  float *query_gradient, *key_gradient, *value_gradient, *v_gradient;
};

REGARD_API void regard_additive_forward(const regard_additive* problem);
REGARD_API void regard_additive_backward(const regard_additive* problem);

// A recurrent layer over whole sequences, in one direction or in both. All arrays are contiguous. Forward and backward need all
// pointers of their own group, and those of the first one.
struct regard_recurrent {
  int64_t cell;  // 0 GRU with the gates in torch's order, 1 tanh, 2 ReLU, 3 sigmoid
  int64_t rows, steps, input_width, width, directions;
  const float* input;                   // (rows, steps, input_width)
  const float *weight, *recurrent;      // (directions, gates * width, input_width) and (…, width): W and U
  const float *bias, *recurrent_bias;   // (directions, gates * width)
  const float* first;                   // (directions, rows, width): before the first step
  const int64_t* lengths;               // (rows): direction 1 reads that many positions in reverse, then the others; null: none
  // forward
  float* states;  // (rows, steps, directions, width)
  float* last;    // (directions, rows, width)
  float* kept;    // (directions, rows, steps, parts, width rounded up to 16) for backward; a GRU has 5 parts, others 2
  // backward
  const float *states_gradient, *last_gradient;
  float *input_gradient, *weight_gradient, *recurrent_gradient, *bias_gradient, *recurrent_bias_gradient, *first_gradient;
};

REGARD_API void regard_recurrent_forward(const regard_recurrent* problem);
REGARD_API void regard_recurrent_backward(const regard_recurrent* problem);

// The decoder of Bahdanau: a GRU whose input has a context vector, found by additive attention with the state before the step. All
// arrays are contiguous. Forward and backward need all pointers of their own group, and those of the groups before.
struct regard_bahdanau {
  int64_t rows, steps, num_keys, width, memory_width, score_width;
  const float* input;                       // (rows, steps, 3 * width): the gates' share of the other inputs and the bias of W
  const float* context_weight;              // (3 * width, memory_width): the columns of W for the context
  const float *recurrent, *recurrent_bias;  // (3 * width, width), (3 * width): U and its bias
  const float *query_weight, *v;            // (score_width, width), (score_width)
  const float *key, *value;                 // (rows, num_keys, score_width), prepared, and (rows, num_keys, memory_width)
  const float* first;                       // (rows, width)
  const uint8_t* allow;                     // (rows, num_keys)
  // forward
  float *states, *contexts, *weights;  // (rows, steps, width), (rows, steps, memory_width), (rows, steps, num_keys)
  float* kept;                         // (rows, steps, 5 * width + score_width), both rounded up to a multiple of 16
  // backward
  const float *states_gradient, *contexts_gradient;
  float *input_gradient, *context_weight_gradient, *recurrent_gradient, *recurrent_bias_gradient, *query_weight_gradient;
  float *v_gradient, *key_gradient, *value_gradient, *first_gradient;
};

REGARD_API void regard_bahdanau_forward(const regard_bahdanau* problem);
REGARD_API void regard_bahdanau_backward(const regard_bahdanau* problem);
