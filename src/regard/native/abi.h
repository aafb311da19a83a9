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
