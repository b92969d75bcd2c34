// Finds the call site, the innermost Python frame of user code, without the GIL.
//
// While a thread is in C++, its Python frames do not change, so reading them needs no lock. Their layout is private and
// differs between versions of CPython: up to 3.13 a table has it, later Pythons tell it. A test at the start verifies it.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace otel_torchdist {

struct CallSite {
  uint64_t code = 0;  // the code object's address, which is its `id`
  int64_t instruction = 0;
  uint64_t path_hash = 0;  // a hash of the library frames that it has called, and of its callers
};

// Kinds of code on the stack of a call; `CodeKind` in capture/core/call_sites.py.
enum class CodeKind : uint8_t { UNKNOWN, BETWEEN, PACKAGE, PROGRAM, PROGRAM_ALONE };

// The kinds of code objects, which Python has determined.
class CodeKinds {
 public:
  void learn(uint64_t code, CodeKind kind);
  void forget();
  CodeKind find(uint64_t code);

 private:
  std::mutex lock_;
  std::unordered_map<uint64_t, CodeKind> kinds_;
};

// A thread's cache of kinds, which needs no lock.
class CodeCache {
 public:
  CodeKind find(uint64_t code, CodeKinds& kinds);
  void clear() { slots_.clear(); }

 private:
  struct Slot {
    uint64_t code;
    CodeKind kind;
  };
  Slot* find_slot(uint64_t code) noexcept;
  void put(uint64_t code, CodeKind kind);

  std::vector<Slot> slots_;
};

// Selects the frame layout of a Python version. Returns false if it is unknown.
//
// Args:
//   minor: The version: 14 for Python 3.14.
//   runtime: The address of `_PyRuntime`, or null.
bool use_frames_of(int minor, const void* runtime);

// Finds the call site. `is_known` is false if Python has to classify a code object first.
CallSite find_call_site(CodeCache& cache, CodeKinds& kinds, bool* is_known);

// Returns the code and the instruction of the innermost frame.
CallSite innermost_frame();

}  // namespace otel_torchdist
