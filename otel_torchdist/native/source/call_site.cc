#include "call_site.h"

#include "python.h"

namespace otel_torchdist {
namespace {

constexpr int MAX_FRAMES = 64;       // Python frames that are searched for a call site
constexpr int HASHED_CALLERS = 12;   // callers of the call site that distinguish calls: four levels of modules
constexpr size_t MIN_CACHED = 64;    // code objects in a thread's cache; powers of two
constexpr size_t MAX_CACHED = 1024;
constexpr size_t MAX_PROBES = 8;
constexpr uint8_t NOT_PYTHONS = 3;  // owners from here on: the C stack, or the interpreter itself, between Python frames
constexpr int64_t INSTRUCTION_BYTES = 2;  // Python counts instructions in units of this size
// Bits of a reference in a frame, from 3.14 on. Objects are aligned to 16 bytes.
constexpr uint64_t REFERENCE_TAGS = 3;

// Offsets in bytes, for 64-bit builds with the GIL.
struct FrameLayout {
  int minor;
  int frame;         // in the thread's state: a pointer to the innermost frame, or to an object that points to it
  int innermost;     // in the object at `frame`: the innermost frame; -1 if `frame` points to that frame itself
  int code;          // in a frame
  int previous;      // in a frame
  int instruction;   // in a frame: a pointer; in 3.10 a number
  int owner;         // in a frame; -1 if C owns no frames
  int instructions;  // in a code object: the first instruction
};

constexpr FrameLayout FRAME_LAYOUTS[] = {
    {10, 24, -1, 32, 24, 96, -1, -1},
    {11, 56, 8, 32, 48, 56, -1, 184},
    {12, 56, 0, 0, 8, 56, 70, 192},
};

// Since 3.13, CPython keeps its offsets for debuggers in `_PyRuntime.debug_offsets` (pycore_debug_offsets.h; in 3.13
// pycore_runtime.h). Indices of that table's words.
struct DebugOffsets {
  int minor;
  int frame;
  int previous;
  int code;
  int instruction;
  int owner;
  int instructions;
};

constexpr DebugOffsets DEBUG_OFFSETS[] = {
    {13, 23, 29, 30, 31, 33, 43},
    {14, 26, 32, 33, 34, 36, 48},
    {15, 26, 40, 41, 42, 44, 56},
};
constexpr char COOKIE[] = "xdebugpy";
constexpr int VERSION_WORD = 1;  // PY_VERSION_HEX
constexpr int MINOR_SHIFT = 16;
constexpr uint64_t MAJOR = 3 << 8;
constexpr int FREE_THREADED_WORD = 2;

FrameLayout read_layout;
const FrameLayout* frame_layout = nullptr;

template <typename T>
T read(const void* object, int offset) {
  T value;
  __builtin_memcpy(&value, static_cast<const char*>(object) + offset, sizeof(value));
  return value;
}

const void* innermost(const FrameLayout& offsets) {
  const void* state = PyGILState_GetThisThreadState();
  if (state == nullptr) {
    return nullptr;  // a C++ thread
  }
  const void* found = read<const void*>(state, offsets.frame);
  return offsets.innermost < 0 || found == nullptr ? found : read<const void*>(found, offsets.innermost);
}

bool is_python_frame(const FrameLayout& offsets, const void* frame) {
  return offsets.owner < 0 || read<uint8_t>(frame, offsets.owner) < NOT_PYTHONS;
}

const void* code_of(const FrameLayout& offsets, const void* frame) {
  return reinterpret_cast<const void*>(read<uint64_t>(frame, offsets.code) & ~REFERENCE_TAGS);
}

int64_t instruction_of(const FrameLayout& offsets, const void* frame, const void* code) {
  if (offsets.instructions < 0) {
    return read<int32_t>(frame, offsets.instruction) * INSTRUCTION_BYTES;
  }
  const auto* current = read<const char*>(frame, offsets.instruction);
  return current - (static_cast<const char*>(code) + offsets.instructions);
}

uint64_t mix(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x9E3779B97F4A7C15U + 1; }

// Hashes the instructions of a frame's callers, not their code: code objects that are created per call always differ.
uint64_t add_callers(const FrameLayout& offsets, const void* frame, uint64_t path_hash) {
  for (int caller = 0; caller < HASHED_CALLERS; ++caller) {
    do {
      frame = read<const void*>(frame, offsets.previous);
    } while (frame != nullptr && !is_python_frame(offsets, frame));
    if (frame == nullptr) {
      break;
    }
    const int64_t instruction = instruction_of(offsets, frame, code_of(offsets, frame));
    path_hash = mix(path_hash, static_cast<uint64_t>(instruction));
  }
  return path_hash;
}

}  // namespace

void CodeKinds::learn(uint64_t code, CodeKind kind) {
  const std::lock_guard<std::mutex> lock(lock_);
  kinds_[code] = kind;
}

void CodeKinds::forget() {
  const std::lock_guard<std::mutex> lock(lock_);
  kinds_.clear();
}

CodeKind CodeKinds::find(uint64_t code) {
  const std::lock_guard<std::mutex> lock(lock_);
  const auto found = kinds_.find(code);
  return found == kinds_.end() ? CodeKind::UNKNOWN : found->second;
}

CodeKind CodeCache::find(uint64_t code, CodeKinds& kinds) {
  if (!slots_.empty()) {
    const Slot* slot = find_slot(code);
    if (slot != nullptr && slot->code == code) {
      return slot->kind;
    }
  }
  const CodeKind kind = kinds.find(code);
  if (kind != CodeKind::UNKNOWN) {
    put(code, kind);
  }
  return kind;
}

// Returns the slot of a code object, or a free slot, or null.
CodeCache::Slot* CodeCache::find_slot(uint64_t code) noexcept {
  const size_t mask = slots_.size() - 1;
  const size_t first = (code >> 4) * 0x9E3779B97F4A7C15U >> 54;  // 10 bits
  for (size_t probe = 0; probe < MAX_PROBES; ++probe) {
    Slot& slot = slots_[(first + probe) & mask];
    if (slot.code == code || slot.code == 0) {
      return &slot;
    }
  }
  return nullptr;
}

void CodeCache::put(uint64_t code, CodeKind kind) {
  if (slots_.empty()) {
    slots_.resize(MIN_CACHED);
  }
  Slot* slot = find_slot(code);
  while (slot == nullptr && slots_.size() < MAX_CACHED) {  // most threads run few code objects
    std::vector<Slot> old_slots(2 * slots_.size());
    slots_.swap(old_slots);
    for (const Slot& old : old_slots) {
      Slot* free = old.code != 0 ? find_slot(old.code) : nullptr;
      if (free != nullptr) {
        *free = old;
      }
    }
    slot = find_slot(code);
  }
  if (slot == nullptr) {  // full: replace an entry
    const size_t mask = slots_.size() - 1;
    slot = &slots_[(((code >> 4) * 0x9E3779B97F4A7C15U >> 54) + MAX_PROBES - 1) & mask];
  }
  *slot = {code, kind};
}

namespace {

// Returns whether the runtime's own table of offsets is of this version of Python, with the GIL. Without the GIL, each
// thread has its own copy of the instructions, and objects have another head.
bool read_debug_offsets(const DebugOffsets& index, const uint64_t* words) {
  if (words == nullptr || __builtin_memcmp(words, COOKIE, sizeof(uint64_t)) != 0 ||
      words[VERSION_WORD] >> MINOR_SHIFT != (MAJOR | static_cast<uint64_t>(index.minor)) ||
      words[FREE_THREADED_WORD] != 0) {
    return false;
  }
  const auto offset = [words](int word) { return static_cast<int>(words[word]); };
  read_layout = {index.minor,
                 offset(index.frame),
                 -1,
                 offset(index.code),
                 offset(index.previous),
                 offset(index.instruction),
                 offset(index.owner),
                 offset(index.instructions)};
  return true;
}

}  // namespace

bool use_frames_of(int minor, const void* runtime) {
  for (const FrameLayout& offsets : FRAME_LAYOUTS) {
    if (offsets.minor == minor) {
      frame_layout = &offsets;
      return true;
    }
  }
  for (const DebugOffsets& index : DEBUG_OFFSETS) {
    if (index.minor == minor && read_debug_offsets(index, static_cast<const uint64_t*>(runtime))) {
      frame_layout = &read_layout;
      return true;
    }
  }
  return false;
}

CallSite find_call_site(CodeCache& cache, CodeKinds& kinds, bool* is_known) {
  *is_known = true;
  const FrameLayout& offsets = *frame_layout;
  const void* frame = innermost(offsets);
  CallSite package_site;  // the result if there is no frame of user code
  uint64_t path_hash = 0;
  for (int searched = 0; frame != nullptr && searched < MAX_FRAMES;
       frame = read<const void*>(frame, offsets.previous)) {
    if (!is_python_frame(offsets, frame)) {
      continue;
    }
    ++searched;
    const void* code = code_of(offsets, frame);
    const CodeKind kind = cache.find(reinterpret_cast<uint64_t>(code), kinds);
    if (kind == CodeKind::UNKNOWN) {
      *is_known = false;
      return {};
    }
    if (kind == CodeKind::BETWEEN) {
      continue;
    }
    const CallSite site{reinterpret_cast<uint64_t>(code), instruction_of(offsets, frame, code), 0};
    if (kind != CodeKind::PACKAGE) {
      path_hash = kind == CodeKind::PROGRAM ? add_callers(offsets, frame, path_hash) : path_hash;
      return {site.code, site.instruction, path_hash};
    }
    path_hash = mix(mix(path_hash, site.code), static_cast<uint64_t>(site.instruction));
    package_site = package_site.code == 0 ? site : package_site;
  }
  return package_site;
}

CallSite innermost_frame() {
  const FrameLayout& offsets = *frame_layout;
  const void* frame = innermost(offsets);
  while (frame != nullptr && !is_python_frame(offsets, frame)) {
    frame = read<const void*>(frame, offsets.previous);
  }
  if (frame == nullptr) {
    return {};
  }
  const void* code = code_of(offsets, frame);
  return {reinterpret_cast<uint64_t>(code), instruction_of(offsets, frame, code), 0};
}

}  // namespace otel_torchdist
