#include <cstring>

#include "abi.h"
#include "engine_kernels.h"
#include "kernels.h"
#include "pool.h"

namespace regard {
namespace {

// An instruction set that this build has. is_there: whether this processor has it, too.
struct InstructionSet {
  const char* name;
  const Kernels* kernels;
  const Recurrent* recurrent;
  const Bahdanau* bahdanau;
  const EngineKernels* engine;
  bool (*is_there)();
};

#ifdef REGARD_HAS_AVX
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}
#endif

// The best one first.
const InstructionSet SETS[] = {
#ifdef REGARD_HAS_AVX
    {"avx512", &avx512::kernels, &avx512::recurrent_kernels, &avx512::bahdanau_kernels, &avx512::engine_kernels, has_avx512},
    {"avx2", &avx2::kernels, &avx2::recurrent_kernels, &avx2::bahdanau_kernels, &avx2::engine_kernels, has_avx2},
#endif
    {"portable", &portable::kernels, &portable::recurrent_kernels, &portable::bahdanau_kernels, &portable::engine_kernels,
     [] { return true; }},
};

// Returns the set of this name, or the best one that this processor has; null if there is none.
const InstructionSet* find(const char* name) {
  for (const InstructionSet& set : SETS)
    if ((name == nullptr || std::strcmp(name, set.name) == 0) && set.is_there()) return &set;
  return nullptr;
}

const InstructionSet* chosen = find(nullptr);

}  // namespace

const EngineKernels& engine_kernels() { return *chosen->engine; }

}  // namespace regard

int regard_abi() { return REGARD_ABI; }

const char* regard_instruction_set() { return regard::chosen->name; }

int regard_choose(const char* name) {
  const regard::InstructionSet* found = regard::find(name);
  if (found == nullptr) return -1;
  regard::chosen = found;
  return 0;
}

void regard_set_threads(int threads) { regard::set_threads(threads); }
void regard_use_team(void* run) { regard::use_team(reinterpret_cast<regard::Team>(run)); }
int regard_threads() { return regard::threads(); }

void regard_additive_forward(const regard_additive* problem) { regard::chosen->kernels->additive_forward(*problem); }
void regard_additive_backward(const regard_additive* problem) { regard::chosen->kernels->additive_backward(*problem); }
void regard_recurrent_forward(const regard_recurrent* problem) { regard::chosen->recurrent->forward(*problem); }
void regard_recurrent_backward(const regard_recurrent* problem) { regard::chosen->recurrent->backward(*problem); }
void regard_bahdanau_forward(const regard_bahdanau* problem) { regard::chosen->bahdanau->forward(*problem); }
void regard_bahdanau_backward(const regard_bahdanau* problem) { regard::chosen->bahdanau->backward(*problem); }
