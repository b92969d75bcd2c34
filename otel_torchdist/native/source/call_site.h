// Where in the user's code a call comes from: the innermost Python frame that is no library's, without the GIL.
//
// While a thread is in C++, its own frames rest, so reading them needs no lock. Their layout is private and differs
// between versions of CPython; a test at the start compares it with what Python itself says.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace otel_torchdist {

struct CallSite {
  uint64_t code = 0;  // the code object's address, which is its `id`
  int64_t instruction = 0;
  uint64_t around = 0;  // a number for the frames of libraries in it, and for those that have led to it
};

// What the walk does at a frame; `CodeKind` in capture/core/call_sites.py.
enum class CodeKind : uint8_t { UNKNOWN, BETWEEN, PACKAGE, PROGRAM, PROGRAM_ALONE };

// Whose code it is, as Python has found out for each code object.
class CodeKinds {
 public:
  void learn(uint64_t code, CodeKind kind);
  void forget();
  CodeKind find(uint64_t code);

 private:
  std::mutex lock_;
  std::unordered_map<uint64_t, CodeKind> kinds_;
};

// What one thread has asked for, so that it takes no lock.
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

// Selects the layout of this Python's frames; false if it is not known.
bool use_frames_of(int minor);

// Finds the call site; `is_known` is false if there is code on the way that Python has to be asked about.
CallSite find_call_site(CodeCache& cache, CodeKinds& kinds, bool* is_known);

// The code and the instruction of the innermost frame.
CallSite innermost_frame();

}  // namespace otel_torchdist
