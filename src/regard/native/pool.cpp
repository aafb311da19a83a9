#include "pool.h"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace regard {
namespace {

struct Job {
  void (*task)(void*, int64_t);
  void* context;
  int64_t count;
  std::atomic<int64_t> next{0};

  void work() {
    for (int64_t number; (number = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(context, number);
  }
};

thread_local bool inside_a_task = false;

// Workers wait on a condition variable; they never spin, because torch's own threads may need the processor.
class Pool {
 public:
  explicit Pool(int workers) {
    for (int number = 0; number < workers; number++) threads_.emplace_back([this] { serve(); });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  int workers() const { return static_cast<int>(threads_.size()); }

  void run(Job& job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
    }
    if (job.count > 2) {
      wake_.notify_all();
    } else {
      wake_.notify_one();
    }
    inside_a_task = true;
    job.work();
    inside_a_task = false;
    std::unique_lock<std::mutex> lock(mutex_);
    job_ = nullptr;  // a worker that has not woken up yet finds nothing
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void serve() {
    inside_a_task = true;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || job_ != nullptr; });
      if (stop_) return;
      Job* job = job_;
      busy_++;
      lock.unlock();
      job->work();
      lock.lock();
      if (job_ == job) job_ = nullptr;  // all of it has been handed out
      if (--busy_ == 0) done_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  int busy_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

std::atomic<int> wanted{1};
Pool* pool = nullptr;
std::mutex* in_use = new std::mutex;  // one parallel call at a time has the workers; others run on their own thread

std::atomic<Team> team{nullptr};

// The threads of the parent do not exist in a forked child: it starts anew, and leaves the parent's objects alone.
void forget() {
  team = nullptr;
  pool = nullptr;
  in_use = new std::mutex;
}

const int registered = pthread_atfork(nullptr, nullptr, forget);

void work_in_team(void* job) {
  inside_a_task = true;
  static_cast<Job*>(job)->work();
  inside_a_task = false;
}

}  // namespace

void use_team(Team run) { team = run; }

void parallel(int64_t count, void (*task)(void*, int64_t), void* context) {
  const int workers = wanted.load() - 1;
  if (workers > 0 && count > 1 && !inside_a_task) {
    if (const Team run = team.load()) {
      Job job{task, context, count};
      run(work_in_team, &job, static_cast<unsigned>(workers + 1), 0);
      return;
    }
    std::unique_lock<std::mutex> lock(*in_use, std::try_to_lock);
    if (lock.owns_lock()) {
      if (pool == nullptr || pool->workers() != workers) {
        delete pool;
        pool = nullptr;
        pool = new Pool(workers);
      }
      Job job{task, context, count};
      pool->run(job);
      return;
    }
  }
  for (int64_t number = 0; number < count; number++) task(context, number);
}

float* scratch(int64_t size) {
  thread_local std::vector<float> memory;
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(static_cast<size_t>(size));
  return memory.data();
}

void set_threads(int threads) { wanted = threads < 1 ? 1 : threads; }
int threads() { return wanted; }

}  // namespace regard
