#include "call_site.h"

#include "python.h"

namespace otel_torchdist {
namespace {

constexpr int WITHIN_REACH = 64;
constexpr int CALLERS = 12;  // frames behind the call site that distinguish calls: four levels of modules
constexpr size_t FEWEST_CACHED = 64;  // powers of two
constexpr size_t MOST_CACHED = 1024;
constexpr size_t PROBED = 8;
constexpr uint8_t OWNED_BY_C = 3;  // a frame on the C stack between Python frames
constexpr int64_t UNIT = 2;        // bytes of an instruction, Python's unit

// Offsets in bytes, for 64-bit builds with the GIL.
struct Frames {
  int minor;
  int frame;         // in the thread's state: the innermost frame, or a pointer to it
  int within;        // offset of the innermost frame there; -1 if `frame` is the frame
  int code;          // in a frame
  int previous;      // in a frame
  int instruction;   // in a frame: a pointer; in 3.10 a number
  int owner;         // in a frame; -1 if C owns no frames
  int instructions;  // in a code object: the first instruction
};

constexpr Frames KNOWN[] = {
    {10, 24, -1, 32, 24, 96, -1, -1},
    {11, 56, 8, 32, 48, 56, -1, 184},
    {12, 56, 0, 0, 8, 56, 70, 192},
    {13, 72, -1, 0, 8, 56, 70, 200},
};

const Frames* in_use = nullptr;

template <typename T>
T read(const void* object, int offset) {
  T value;
  __builtin_memcpy(&value, static_cast<const char*>(object) + offset, sizeof(value));
  return value;
}

const void* innermost(const Frames& frames) {
  const void* state = PyGILState_GetThisThreadState();
  if (state == nullptr) {
    return nullptr;  // a C++ thread
  }
  const void* found = read<const void*>(state, frames.frame);
  return frames.within < 0 || found == nullptr ? found : read<const void*>(found, frames.within);
}

bool is_of_python(const Frames& frames, const void* frame) {
  return frames.owner < 0 || read<uint8_t>(frame, frames.owner) != OWNED_BY_C;
}

int64_t instruction_of(const Frames& frames, const void* frame, const void* code) {
  if (frames.instructions < 0) {
    return read<int32_t>(frame, frames.instruction) * UNIT;
  }
  const auto* current = read<const char*>(frame, frames.instruction);
  return current - (static_cast<const char*>(code) + frames.instructions);
}

uint64_t mixed(uint64_t around, uint64_t more) { return (around ^ more) * 0x9E3779B97F4A7C15U + 1; }

// Hashes the instructions of the frames behind a frame, not their code: code that is created per call always differs.
uint64_t add_callers(const Frames& frames, const void* frame, uint64_t around) {
  for (int within = 0; within < CALLERS; ++within) {
    do {
      frame = read<const void*>(frame, frames.previous);
    } while (frame != nullptr && !is_of_python(frames, frame));
    if (frame == nullptr) {
      break;
    }
    around = mixed(around, static_cast<uint64_t>(instruction_of(frames, frame, read<const void*>(frame, frames.code))));
  }
  return around;
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
  const size_t last = slots_.size() - 1;
  const size_t first = (code >> 4) * 0x9E3779B97F4A7C15U >> 54;  // 10 bits
  for (size_t probe = 0; probe < PROBED; ++probe) {
    Slot& slot = slots_[(first + probe) & last];
    if (slot.code == code || slot.code == 0) {
      return &slot;
    }
  }
  return nullptr;
}

void CodeCache::put(uint64_t code, CodeKind kind) {
  if (slots_.empty()) {
    slots_.resize(FEWEST_CACHED);
  }
  Slot* slot = find_slot(code);
  while (slot == nullptr && slots_.size() < MOST_CACHED) {  // most threads run few code objects
    std::vector<Slot> before(2 * slots_.size());
    slots_.swap(before);
    for (const Slot& one : before) {
      Slot* free = one.code != 0 ? find_slot(one.code) : nullptr;
      if (free != nullptr) {
        *free = one;
      }
    }
    slot = find_slot(code);
  }
  if (slot == nullptr) {  // full: keep the newest
    const size_t last = slots_.size() - 1;
    slot = &slots_[(((code >> 4) * 0x9E3779B97F4A7C15U >> 54) + PROBED - 1) & last];
  }
  *slot = {code, kind};
}

bool use_frames_of(int minor) {
  for (const Frames& frames : KNOWN) {
    if (frames.minor == minor) {
      in_use = &frames;
      return true;
    }
  }
  return false;
}

CallSite find_call_site(CodeCache& cache, CodeKinds& kinds, bool* is_known) {
  *is_known = true;
  const Frames& frames = *in_use;
  const void* frame = innermost(frames);
  CallSite within;  // in a package, in case there is no frame of user code
  uint64_t around = 0;
  for (int seen = 0; frame != nullptr && seen < WITHIN_REACH; frame = read<const void*>(frame, frames.previous)) {
    if (!is_of_python(frames, frame)) {
      continue;
    }
    ++seen;
    const void* code = read<const void*>(frame, frames.code);
    const CodeKind kind = cache.find(reinterpret_cast<uint64_t>(code), kinds);
    if (kind == CodeKind::UNKNOWN) {
      *is_known = false;
      return {};
    }
    if (kind == CodeKind::BETWEEN) {
      continue;
    }
    const CallSite here{reinterpret_cast<uint64_t>(code), instruction_of(frames, frame, code), 0};
    if (kind != CodeKind::PACKAGE) {
      around = kind == CodeKind::PROGRAM ? add_callers(frames, frame, around) : around;
      return {here.code, here.instruction, around};
    }
    around = mixed(mixed(around, here.code), static_cast<uint64_t>(here.instruction));
    within = within.code == 0 ? here : within;
  }
  return within;
}

CallSite innermost_frame() {
  const Frames& frames = *in_use;
  const void* frame = innermost(frames);
  while (frame != nullptr && !is_of_python(frames, frame)) {
    frame = read<const void*>(frame, frames.previous);
  }
  if (frame == nullptr) {
    return {};
  }
  const void* code = read<const void*>(frame, frames.code);
  return {reinterpret_cast<uint64_t>(code), instruction_of(frames, frame, code), 0};
}

}  // namespace otel_torchdist
