// Threads that sleep while there is nothing to do.
#pragma once
#include <cstdint>

namespace regard {

// Calls task(context, 0) ... task(context, count - 1), each exactly once, on up to `threads()` threads. Which thread runs
// which number is not fixed, so a task must not depend on it. A call from inside a task runs on that task's thread alone.
void parallel(int64_t count, void (*task)(void* context, int64_t number), void* context);

// The same for a function object.
template <class Task>
void parallel(int64_t count, Task&& task) {
  auto call = [](void* context, int64_t number) { (*static_cast<Task*>(context))(number); };
  parallel(count, static_cast<void (*)(void*, int64_t)>(call), &task);
}

// Memory of this thread for at least `size` numbers, valid until the thread asks again.
float* scratch(int64_t size);

// Runs a function on a number of threads at the same time, as GOMP_parallel of OpenMP's library does.
using Team = void (*)(void (*function)(void*), void* data, unsigned threads, unsigned flags);

// Runs on the threads of another library from now on; null: on our own. Its threads may spin for a while after each of its calls,
// and ours would then wait for a processor. A forked child has neither, and goes back to our own.
void use_team(Team run);

void set_threads(int threads);
int threads();

}  // namespace regard
