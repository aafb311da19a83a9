// The kernels of one instruction set. Every file of kernels is compiled once per instruction set into a namespace of that name,
// and uses no inline function or template of a library: the linker keeps one copy of those, perhaps one with instructions that
// the processor does not have.
#pragma once
#include "abi.h"

namespace regard {

struct Kernels {
  void (*additive_forward)(const regard_additive& problem);
  void (*additive_backward)(const regard_additive& problem);
};

struct Recurrent {
  void (*forward)(const regard_recurrent& problem);
  void (*backward)(const regard_recurrent& problem);
};

struct Bahdanau {
  void (*forward)(const regard_bahdanau& problem);
  void (*backward)(const regard_bahdanau& problem);
};

namespace portable {
extern const Kernels kernels;
extern const Recurrent recurrent_kernels;
extern const Bahdanau bahdanau_kernels;
}
namespace avx2 {
extern const Kernels kernels;
extern const Recurrent recurrent_kernels;
extern const Bahdanau bahdanau_kernels;
}
namespace avx512 {
extern const Kernels kernels;
extern const Recurrent recurrent_kernels;
extern const Bahdanau bahdanau_kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

}  // namespace regard
