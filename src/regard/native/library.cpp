#include <cstring>

#include "abi.h"
#include "engine_kernels.h"
#include "kernels.h"
#include "pool.h"

namespace regard {
namespace {

bool has_avx2() {
#ifdef REGARD_HAS_AVX2
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

const Kernels* find(const char* name) {
#ifdef REGARD_HAS_AVX2
  if (std::strcmp(name, "avx2") == 0 && has_avx2()) return &avx2::kernels;
#endif
  return std::strcmp(name, "portable") == 0 ? &portable::kernels : nullptr;
}

const EngineKernels* find_engine(const Kernels* kernels) {
#ifdef REGARD_HAS_AVX2
  if (kernels == &avx2::kernels) return &avx2::engine_kernels;
#endif
  return kernels == nullptr ? nullptr : &portable::engine_kernels;
}

const char* chosen_name = has_avx2() ? "avx2" : "portable";
const Kernels* chosen = find(chosen_name);
const EngineKernels* chosen_engine = find_engine(chosen);

}  // namespace

const EngineKernels& engine_kernels() { return *chosen_engine; }

}  // namespace regard

int regard_abi() { return REGARD_ABI; }

const char* regard_instruction_set() { return regard::chosen_name; }

int regard_choose(const char* name) {
  const regard::Kernels* found = regard::find(name);
  if (found == nullptr) return -1;
  regard::chosen = found;
  regard::chosen_engine = regard::find_engine(found);
  regard::chosen_name = std::strcmp(name, "avx2") == 0 ? "avx2" : "portable";
  return 0;
}

void regard_set_threads(int threads) { regard::set_threads(threads); }
void regard_use_team(void* run) { regard::use_team(reinterpret_cast<regard::Team>(run)); }
int regard_threads() { return regard::threads(); }

void regard_additive_forward(const regard_additive* problem) { regard::chosen->additive_forward(*problem); }
void regard_additive_backward(const regard_additive* problem) { regard::chosen->additive_backward(*problem); }
