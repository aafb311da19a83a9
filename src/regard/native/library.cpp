#include <cstring>

#include "abi.h"
#include "kernels.h"
#include "pool.h"

namespace regard {
namespace {

struct Named {
  const char* name;
  const Additive* additive;
  const Recurrent* recurrent;
  const Bahdanau* bahdanau;
};

#ifdef REGARD_HAS_X86
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

// The kernels of this name, null if this processor or this build does not have them. Without a name: the fastest.
Named find(const char* name) {
  auto asked = [name](const char* one) { return name == nullptr || std::strcmp(name, one) == 0; };
#ifdef REGARD_HAS_X86
  if (asked("avx512") && has_avx512()) return {"avx512", &avx512::additive_kernels, &avx512::recurrent_kernels, &avx512::bahdanau_kernels};
  if (asked("avx2") && has_avx2()) return {"avx2", &avx2::additive_kernels, &avx2::recurrent_kernels, &avx2::bahdanau_kernels};
#endif
  if (asked("portable")) return {"portable", &portable::additive_kernels, &portable::recurrent_kernels, &portable::bahdanau_kernels};
  return {name, nullptr, nullptr, nullptr};
}

Named chosen = find(nullptr);

}  // namespace
}  // namespace regard

int regard_abi() { return REGARD_ABI; }

const char* regard_instruction_set() { return regard::chosen.name; }

int regard_choose(const char* name) {
  const regard::Named found = regard::find(name);
  if (found.additive == nullptr) return -1;
  regard::chosen = found;
  return 0;
}

void regard_set_threads(int threads) { regard::set_threads(threads); }
void regard_use_team(void* run) { regard::use_team(reinterpret_cast<regard::Team>(run)); }
int regard_threads() { return regard::threads(); }

void regard_additive_forward(const regard_additive* problem) { regard::chosen.additive->forward(*problem); }
void regard_additive_backward(const regard_additive* problem) { regard::chosen.additive->backward(*problem); }
void regard_recurrent_forward(const regard_recurrent* problem) { regard::chosen.recurrent->forward(*problem); }
void regard_recurrent_backward(const regard_recurrent* problem) { regard::chosen.recurrent->backward(*problem); }
void regard_bahdanau_forward(const regard_bahdanau* problem) { regard::chosen.bahdanau->forward(*problem); }
void regard_bahdanau_backward(const regard_bahdanau* problem) { regard::chosen.bahdanau->backward(*problem); }
