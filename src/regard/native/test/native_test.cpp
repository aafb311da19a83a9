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

// Odd sizes, with and without a mask and dropout: the sanitizers see every read and write. Each row of weights sums to 1 or 0.
void test_additive(int64_t queries, int64_t keys, int64_t width, int64_t value_width, bool masked, float dropout, float spread) {
  const int64_t leads = 2;
  auto numbers = [&](int64_t size, float scale) {
    std::vector<float> x(static_cast<size_t>(size));
    for (size_t i = 0; i < x.size(); i++) x[i] = scale * (static_cast<float>(i * 37 % 101) / 50.0f - 1.0f);
    return x;
  };
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
    for (int threads : {1, 2}) {
      regard_set_threads(threads);
      test_engine();
    }
    std::printf("%s: all tests passed\n", name);
  }
}
