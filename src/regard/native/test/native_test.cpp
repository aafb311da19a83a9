// Tests of the native part without torch or Python, for the sanitizers: make sanitize.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "abi.h"
#include "pool.h"

void test_engine();  // engine_test.cpp

namespace {

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "native_test: %s\n", what);
  std::exit(1);
}

// Every number must be handed out exactly once, whatever the number of threads and of callers.
bool each_once(int64_t count) {
  std::vector<std::atomic<int>> seen(count);
  regard::parallel(count, [&](int64_t number) { seen[number]++; });
  for (auto& times : seen)
    if (times != 1) return false;
  return true;
}

void test_pool() {
  for (int threads : {1, 2, 3, 7, 2}) {
    regard_set_threads(threads);
    for (int64_t count : {0, 1, 2, 5, 101}) check(each_once(count), "a task was run twice or never");
  }
}

void test_callers() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; caller++)
    callers.emplace_back([&] {
      for (int round = 0; round < 50; round++) wrong += !each_once(11);
    });
  for (auto& caller : callers) caller.join();
  check(wrong == 0, "two callers at a time got into each other's way");
}

void test_nested() {
  std::atomic<int> total{0};
  regard::parallel(5, [&](int64_t) { regard::parallel(3, [&](int64_t) { total++; }); });
  check(total == 15, "a parallel call inside a task");
}

// A team that runs its function on fresh threads, one of them the caller, like GOMP_parallel.
void fresh_threads(void (*function)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> others;
  for (unsigned number = 1; number < threads; number++) others.emplace_back(function, data);
  function(data);
  for (auto& other : others) other.join();
}

void test_team() {
  regard_use_team(reinterpret_cast<void*>(fresh_threads));
  test_pool();
  test_nested();
  const pid_t child = fork();
  if (child == 0) _exit(each_once(31) ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  check(status == 0, "a forked child of a team could not run in parallel");
  regard_use_team(nullptr);
}

void test_fork() {
  check(each_once(31), "before the fork");
  const pid_t child = fork();
  if (child == 0) _exit(each_once(31) && each_once(7) ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  check(status == 0, "a forked child could not run in parallel");
  check(each_once(31), "the parent after the fork");
}

std::vector<float> numbers(int64_t size, float scale) {
  std::vector<float> x(static_cast<size_t>(size));
  for (size_t i = 0; i < x.size(); i++) x[i] = scale * (static_cast<float>(i * 37 % 101) / 50.0f - 1.0f);
  return x;
}

// Odd sizes, with and without a mask and dropout: the sanitizers see every read and write. Each row of weights sums to 1 or 0.
void test_additive(int64_t queries, int64_t keys, int64_t width, int64_t value_width, bool masked, float dropout, float spread) {
  const int64_t leads = 2;
  const auto query = numbers(leads * queries * width, spread), key = numbers(keys * width, spread), v = numbers(width, 1);
  const auto value = numbers(keys * value_width, 1), upstream = numbers(leads * queries * value_width, 1);
  std::vector<uint8_t> allow(static_cast<size_t>(queries * keys));
  for (size_t i = 0; i < allow.size(); i++) allow[i] = i % 3 != 0;
  const std::vector<int64_t> shared(leads, 0);
  std::vector<float> context(upstream.size()), weights(static_cast<size_t>(leads * queries * keys)),
      log_sum(static_cast<size_t>(leads * queries)), d_query(query.size()), d_key(key.size() * leads),
      d_value(value.size() * leads), d_v(v.size() * leads);
  regard_additive p{};
  p.leads = leads, p.num_queries = queries, p.num_keys = keys, p.width = width, p.value_width = value_width;
  p.key_leads = p.value_leads = 1;
  p.query = query.data(), p.key = key.data(), p.v = v.data(), p.value = value.data();
  p.key_of = p.value_of = p.allow_of = shared.data();
  p.allow = masked ? allow.data() : nullptr, p.allow_row = keys, p.allow_column = 1;
  p.seed = 7, p.dropout = dropout;
  p.context = context.data(), p.weights = weights.data(), p.log_sum = log_sum.data();
  regard_additive_forward(&p);
  for (int64_t row = 0; row < leads * queries; row++) {
    float sum = 0;
    for (int64_t j = 0; j < keys; j++) sum += weights[static_cast<size_t>(row * keys + j)];
    check(std::fabs(sum - 1) < 1e-5f || (masked && sum == 0), "a row of weights does not sum to 1");
  }
  p.context_gradient = upstream.data(), p.query_gradient = d_query.data(), p.key_gradient = d_key.data();
  p.value_gradient = d_value.data(), p.v_gradient = d_v.data();
  regard_additive_backward(&p);
  p.weights = nullptr;
  regard_additive_backward(&p);
  for (const auto& gradient : {d_query, d_key, d_value, d_v})
    for (float x : gradient) check(std::isfinite(x), "a gradient is not finite");
}

int64_t padded(int64_t width) { return (width + 15) / 16 * 16; }

void check_finite(const std::vector<std::vector<float>>& arrays, const char* what) {
  for (const auto& array : arrays)
    for (float x : array) check(std::isfinite(x), what);
}

// Odd sizes, both directions: the sanitizers see every read and write. Saturated cells stay within −1 and 1.
void test_recurrent(int64_t cell, int64_t rows, int64_t steps, int64_t input_width, int64_t width, float spread) {
  const int64_t gates = cell == 0 ? 3 : 1, parts = cell == 0 ? 5 : 2, slots = rows * steps;
  const auto input = numbers(slots * input_width, spread), weight = numbers(2 * gates * width * input_width, 1),
             recurrent = numbers(2 * gates * width * width, 0.1f), bias = numbers(2 * gates * width, 1),
             first = numbers(2 * rows * width, 1), upstream = numbers(2 * slots * width, 1);
  std::vector<int64_t> lengths(static_cast<size_t>(rows));
  for (size_t row = 0; row < lengths.size(); row++) lengths[row] = static_cast<int64_t>(row) % (steps + 1);
  std::vector<float> states(upstream.size()), last(first.size()), kept(static_cast<size_t>(2 * slots * parts * padded(width)));
  std::vector<std::vector<float>> gradients = {input, weight, recurrent, bias, bias, first};
  regard_recurrent p{};
  p.cell = cell, p.rows = rows, p.steps = steps, p.input_width = input_width, p.width = width, p.directions = 2;
  p.input = input.data(), p.weight = weight.data(), p.recurrent = recurrent.data();
  p.bias = p.recurrent_bias = bias.data(), p.first = first.data(), p.lengths = lengths.data();
  p.states = states.data(), p.last = last.data(), p.kept = kept.data();
  regard_recurrent_forward(&p);
  for (float x : states) check(cell == 2 ? x >= 0 : std::fabs(x) <= 1, "a state is out of the range of its cell");
  p.states_gradient = upstream.data(), p.last_gradient = first.data();
  p.input_gradient = gradients[0].data(), p.weight_gradient = gradients[1].data(), p.recurrent_gradient = gradients[2].data();
  p.bias_gradient = gradients[3].data(), p.recurrent_bias_gradient = gradients[4].data(), p.first_gradient = gradients[5].data();
  regard_recurrent_backward(&p);
  check_finite(gradients, "a gradient of a recurrent layer is not finite");
}

// Odd sizes, with rows that have no key. Each row of weights sums to 1 or 0.
void test_bahdanau(int64_t rows, int64_t steps, int64_t keys, int64_t width, int64_t memory, int64_t score) {
  const int64_t slots = rows * steps;
  const auto input = numbers(slots * 3 * width, 1), context_weight = numbers(3 * width * memory, 0.1f),
             recurrent = numbers(3 * width * width, 0.1f), bias = numbers(3 * width, 1), query = numbers(score * width, 1),
             v = numbers(score, 1), key = numbers(rows * keys * score, 1), value = numbers(rows * keys * memory, 1),
             first = numbers(rows * width, 1), upstream = numbers(slots * width, 1), of_contexts = numbers(slots * memory, 1);
  std::vector<uint8_t> allow(static_cast<size_t>(rows * keys));
  for (size_t i = 0; i < allow.size(); i++) allow[i] = i >= static_cast<size_t>(keys) && i % 3 != 0;
  std::vector<float> states(upstream.size()), contexts(of_contexts.size()), weights(static_cast<size_t>(slots * keys)),
      kept(static_cast<size_t>(slots * (5 * padded(width) + padded(score))));
  std::vector<std::vector<float>> gradients = {input, context_weight, recurrent, bias, query, v, key, value, first};
  regard_bahdanau p{};
  p.rows = rows, p.steps = steps, p.num_keys = keys, p.width = width, p.memory_width = memory, p.score_width = score;
  p.input = input.data(), p.context_weight = context_weight.data(), p.recurrent = recurrent.data();
  p.recurrent_bias = bias.data(), p.query_weight = query.data(), p.v = v.data(), p.key = key.data(), p.value = value.data();
  p.first = first.data(), p.allow = allow.data();
  p.states = states.data(), p.contexts = contexts.data(), p.weights = weights.data(), p.kept = kept.data();
  regard_bahdanau_forward(&p);
  for (int64_t slot = 0; slot < slots; slot++) {
    float sum = 0;
    for (int64_t j = 0; j < keys; j++) sum += weights[static_cast<size_t>(slot * keys + j)];
    check(std::fabs(sum - 1) < 1e-5f || sum == 0, "a row of weights of Bahdanau's decoder does not sum to 1");
  }
  p.states_gradient = upstream.data(), p.contexts_gradient = of_contexts.data();
  float** fields[] = {&p.input_gradient, &p.context_weight_gradient, &p.recurrent_gradient, &p.recurrent_bias_gradient,
                      &p.query_weight_gradient, &p.v_gradient, &p.key_gradient, &p.value_gradient, &p.first_gradient};
  for (size_t i = 0; i < gradients.size(); i++) *fields[i] = gradients[i].data();
  regard_bahdanau_backward(&p);
  check_finite(gradients, "a gradient of Bahdanau's decoder is not finite");
}

}  // namespace

int main() {
  for (const char* name : {"portable", "avx2", "avx512"}) {
    if (regard_choose(name) != 0) continue;
    test_pool();
    test_callers();
    test_nested();
    test_fork();
    test_team();
    for (float spread : {1.0f, 4.0f, 30.0f}) {
      test_additive(1, 1, 1, 1, false, 0, spread);
      test_additive(2, 7, 5, 3, true, 0.5f, spread);
      test_additive(13, 17, 9, 19, true, 0, spread);
      test_additive(101, 33, 8, 16, false, 0.25f, spread);
      test_additive(211, 5, 3, 2, true, 0, spread);
    }
    for (int64_t cell = 0; cell < 4; cell++) {
      test_recurrent(cell, 1, 1, 1, 1, 1);
      test_recurrent(cell, 53, 7, 5, 17, 1);
      test_recurrent(cell, 5, 3, 33, 32, 100);
    }
    test_bahdanau(1, 1, 1, 1, 1, 1);
    test_bahdanau(53, 5, 9, 17, 33, 19);
    test_bahdanau(7, 3, 17, 32, 16, 16);
    for (int threads : {1, 2}) {
      regard_set_threads(threads);
      test_engine();
    }
    std::printf("%s: all tests passed\n", name);
  }
}
