// The tables in which a call is looked up: its plan, its Work, and the code on its thread's stack.
#include <pthread.h>

#include <cstring>
#include <map>

#include "plans.h"
#include "python.h"
#include "stress.h"

namespace {

thread_local const void* state_of_thread = nullptr;

}  // namespace

// In place of Python's: what the calling thread has said is its state.
void* PyGILState_GetThisThreadState(void) { return const_cast<void*>(state_of_thread); }

namespace stress {
namespace {

using namespace otel_torchdist;

Plan plan_of(uint32_t kind) {
  Plan plan{};
  plan.kind = kind;
  return plan;
}

// A key as calls have them: a few words, of which most are equal.
std::vector<uint64_t> words_of(Random& random) {
  std::vector<uint64_t> words(1 + random.below(8));
  for (uint64_t& word : words) {
    word = random.below(3);
  }
  return words;
}

void check_length() {
  Key key;
  for (size_t index = 0; index < Key::MAX_WORDS; ++index) {
    check(key.add(index), "a key has room for so many words", index);
  }
  check(!key.add(1) && key.size() == Key::MAX_WORDS, "and not for one more");
  key.clear();
  check(key.size() == 0 && key.add(1) && key.size() == 1, "a key can be used again");
}

// Against a map: with so few different words, hashes are equal often; with `is_blunt`, all of them are.
void check_plans(uint64_t seed, bool is_blunt) {
  constexpr size_t MOST = 2048;
  Random random(seed);
  Plans plans;
  std::map<std::vector<uint64_t>, uint32_t> expected;
  uint64_t cleared = 0;
  for (uint32_t nth = 1; nth < 6'000; ++nth) {
    std::vector<uint64_t> words = words_of(random);
    if (is_blunt && expected.size() == 100) {
      plans.clear();
      expected.clear();
    }
    Key key;
    for (const uint64_t word : words) {
      key.add(word);
    }
    const uint64_t hash = is_blunt ? 7 : key.hash();
    const Plan* found = plans.find(key, hash);
    const auto known = expected.find(words);
    check((found != nullptr) == (known != expected.end()), "what was put is found, and nothing else", nth);
    if (found != nullptr) {
      check(found->kind == known->second, "a call has its own plan, whatever its hash", nth);
      continue;
    }
    const bool is_full = expected.size() == MOST;
    check(plans.put(key, hash, plan_of(nth)) != is_full, "all are forgotten when there are too many", nth);
    if (is_full) {
      expected.clear();
      ++cleared;
    }
    expected[words] = nth;
  }
  check(is_blunt || cleared > 0, "the table was full");
}

// What other libraries have run when a thread ends, after its `thread_local` objects are gone: it may communicate.
void communicate_late(void* is_shared) {
  const ThreadState* const own = &thread_state();
  in_threads(1, [&](unsigned) { *static_cast<std::atomic<bool>*>(is_shared) = &thread_state() == own; });
}

void check_late_calls() {
  std::atomic<bool> is_shared{false};
  in_threads(1, [](unsigned) { thread_state(); });  // its own key is made before
  pthread_key_t key;
  check(pthread_key_create(&key, communicate_late) == 0, "there is a key left");
  for (int nth = 0; nth < 10; ++nth) {
    in_threads(1, [&](unsigned) {
      thread_state();
      pthread_setspecific(key, &is_shared);
    });
    check(!is_shared, "a thread that is about to end shares its state with no other");
  }
  pthread_key_delete(key);
}

constexpr uint64_t ADDRESSES = 4'000;

const void* address_of(uint64_t nth) { return reinterpret_cast<const void*>(nth * 64); }

// Offsets as CPython has them: of a version whose layout the library knows, and of two that tell theirs.
struct Layout {
  int minor;
  size_t frame;
  size_t within;
  size_t code;
  size_t previous;
  size_t instruction;
  size_t owner;
  size_t instructions;
  uint64_t tag;  // what a reference to code has beside its address
};

constexpr Layout LAYOUTS[] = {{11, 56, 8, 32, 48, 56, 0, 184, 0},
                              {13, 72, 0, 0, 8, 56, 70, 200, 0},
                              {14, 80, 0, 0, 8, 56, 74, 200, 1}};

// The start of `_PyRuntime`: the table of offsets of Python 3.13 (pycore_runtime.h) or 3.14 (pycore_debug_offsets.h).
class FakeRuntime {
 public:
  explicit FakeRuntime(const Layout& layout) {
    const bool is_13 = layout.minor == 13;
    std::memcpy(words_, "xdebugpy", 8);
    words_[1] = is_13 ? 0x030D05F0 : 0x030E08F0;
    words_[is_13 ? 23 : 26] = layout.frame;
    words_[is_13 ? 29 : 32] = layout.previous;
    words_[is_13 ? 30 : 33] = layout.code;
    words_[is_13 ? 31 : 34] = layout.instruction;
    words_[is_13 ? 33 : 36] = layout.owner;
    words_[is_13 ? 43 : 48] = layout.instructions;
  }
  const void* address() const { return words_; }
  void set_version(uint64_t version) { words_[1] = version; }
  void set_free_threaded(uint64_t is_free_threaded) { words_[2] = is_free_threaded; }
  void spoil_cookie() { words_[0] ^= 1; }

 private:
  uint64_t words_[96] = {};
};

struct FakeFrame {
  char bytes[96] = {};
};

template <typename T>
void store(void* object, size_t offset, T value) {
  std::memcpy(static_cast<char*>(object) + offset, &value, sizeof(value));
}

// The frames of one thread, the outermost first.
class FakeStack {
 public:
  explicit FakeStack(const Layout& layout) : layout_(layout) {}

  void clear() { frames_.clear(); }
  void push(uint64_t code, int64_t instruction, bool is_of_c) {
    FakeFrame& frame = *frames_.emplace_back(std::make_unique<FakeFrame>());
    const void* previous = frames_.size() > 1 ? frames_[frames_.size() - 2].get() : nullptr;
    store(frame.bytes, layout_.code, code | layout_.tag);
    store(frame.bytes, layout_.previous, previous);
    store(frame.bytes, layout_.instruction, code + layout_.instructions + static_cast<uint64_t>(instruction));
    if (layout_.owner != 0) {
      store<uint8_t>(frame.bytes, layout_.owner, is_of_c ? 3 : 0);
    }
  }
  void enter() {
    const void* innermost = frames_.empty() ? nullptr : frames_.back().get();
    store(cframe_, layout_.within, innermost);
    store(state_, layout_.frame, layout_.within != 0 ? static_cast<const void*>(cframe_) : innermost);
    state_of_thread = state_;
  }

 private:
  const Layout layout_;
  char state_[96] = {};
  char cframe_[16] = {};
  std::vector<std::unique_ptr<FakeFrame>> frames_;
};

// Whose code it is, for every thread at any time.
CodeKind kind_of(uint64_t code) {
  if (code % 160 == 0) {
    return CodeKind::BETWEEN;
  }
  if (code % 96 == 0) {
    return CodeKind::PACKAGE;
  }
  return code % 112 == 0 ? CodeKind::PROGRAM_ALONE : CodeKind::PROGRAM;
}

bool is_program(CodeKind kind) { return kind == CodeKind::PROGRAM || kind == CodeKind::PROGRAM_ALONE; }

void check_walk(const Layout& layout, CodeKinds& kinds, CodeCache& cache, Random& random) {
  FakeStack stack(layout), moved(layout);
  std::vector<CallSite> outermost_first;
  const uint64_t depth = random.below(90);
  const uint64_t place = random.below(depth + 1);  // of the frame that is at another instruction in the other stack
  size_t moved_index = depth;
  for (uint64_t index = 0; index < depth; ++index) {
    const uint64_t code = 16 * (1 + random.below(3'000)) * (random.below(8) != 0 ? 10 : 1);
    const auto instruction = static_cast<int64_t>(2 * random.below(500));
    const bool is_of_c = layout.owner != 0 && random.below(5) == 0;
    stack.push(code, instruction, is_of_c);
    moved.push(code, index == place ? instruction + 2 : instruction, is_of_c);
    if (!is_of_c) {
      kinds.learn(code, kind_of(code));
      moved_index = index == place ? outermost_first.size() : moved_index;
      outermost_first.push_back({code, instruction});
    }
  }
  stack.enter();
  CallSite expected;
  size_t behind = 0;  // frames behind the program's
  for (size_t within = 0; within < 64 && within < outermost_first.size(); ++within) {
    const CallSite& site = outermost_first[outermost_first.size() - 1 - within];
    if (is_program(kind_of(site.code))) {
      expected = site;
      behind = outermost_first.size() - 1 - within;
      break;
    }
    if (expected.code == 0 && kind_of(site.code) == CodeKind::PACKAGE) {
      expected = site;
    }
  }
  bool is_known = false;
  const CallSite found = find_call_site(cache, kinds, &is_known);
  if (is_known) {  // another thread may have had all code forgotten
    check(found.code == expected.code && found.instruction == expected.instruction, "the site is the program's", depth);
    const bool is_alone = kind_of(found.code) == CodeKind::PROGRAM_ALONE;
    moved.enter();
    const CallSite other = find_call_site(cache, kinds, &is_known);
    if (is_known && is_program(kind_of(found.code)) && moved_index < behind) {
      const bool is_seen = !is_alone && behind - moved_index <= 12;
      check((other.path_hash != found.path_hash) == is_seen, "callers in reach tell calls apart", depth);
    }
    stack.enter();
  }
  const CallSite innermost = innermost_frame();
  check(innermost.code == (outermost_first.empty() ? 0 : outermost_first.back().code), "the innermost frame is found");
}

}  // namespace

void plans(uint64_t seed) {
  check_length();
  in_threads(3, [&](unsigned thread) { check_plans(seed + thread, thread == 0); });
  check_late_calls();
  // What a thread leaves is used by another one, which must not take it for its own.
  std::atomic<const ThreadState*> left{nullptr};
  const Session* const session = reinterpret_cast<const Session*>(64);
  std::atomic<int> taken_over{0};
  for (int nth = 0; nth < 50; ++nth) {
    in_threads(3, [&](unsigned) {
      ThreadState& state = thread_state();
      taken_over += &state == left.exchange(&state);
      check(state.session == nullptr, "a thread starts without another one's plans");
      state.session = session;
    });
  }
  print("taken_over", static_cast<uint64_t>(taken_over));
}

void followed(uint64_t seed) {
  constexpr uint64_t CAPACITY = 4096;
  constexpr uint64_t OPERATIONS = 6'000;
  const TapeFile file(CAPACITY);
  Tape tape(file.file(), CAPACITY);
  FollowedTable table;
  std::atomic<uint64_t> kept{0};
  std::atomic<uint64_t> no_room{0};
  FollowedOperation nothing;
  check(!table.put(nullptr, nothing, tape), "no address is not put");
  const auto find = [&](uint64_t nth) {
    FollowedOperation found;
    if (!table.find(address_of(nth), &found, /*remove=*/true)) {
      return;
    }
    ++kept;
    check(found.entered_ns % ADDRESSES == nth && found.kind == static_cast<uint32_t>(3 * found.entered_ns),
          "an entry is of its address, and whole", nth);
    tape.complete(found.number, found.entered_ns, found.entered_ns + 1, layout::HOW_WAIT, 0);
  };
  in_threads(4, [&](unsigned thread) {
    Random random(seed + thread);
    FollowedOperation found;
    for (uint64_t nth = 0; nth < OPERATIONS; ++nth) {
      const uint64_t place = 1 + random.below(ADDRESSES - 1);
      const uint64_t entered_ns = ADDRESSES * (1 + random.below(1'000)) + place;
      const uint64_t number = tape.begin(entered_ns, 0, 0, Tail{});
      const FollowedOperation followed{number, entered_ns, nullptr, nullptr, static_cast<uint32_t>(3 * entered_ns), 0, 0, 0};
      if (!table.put(address_of(place), followed, tape)) {
        ++no_room;
      }
      if (random.below(3) == 0) {  // its future knows its end; the entry stays behind
        tape.complete_at(number, entered_ns + 1, layout::HOW_CALLBACK, 0);
      }
      find(1 + random.below(ADDRESSES - 1));
      check(!table.find(nullptr, &found, true), "no address is not found");
    }
  });
  print("found", kept);
  print("no_room", no_room);
}

void call_sites(uint64_t seed) {
  for (const Layout& layout : LAYOUTS) {
    const FakeRuntime runtime(layout);
    check(use_frames_of(layout.minor, runtime.address()), "these frames are known", static_cast<uint64_t>(layout.minor));
    state_of_thread = nullptr;
    CodeKinds kinds;
    CodeCache empty;
    bool is_known = false;
    check(find_call_site(empty, kinds, &is_known).code == 0 && is_known, "a thread of C++ has no call site");
    FakeStack unknown(layout);
    unknown.push(48, 2, false);
    unknown.enter();
    find_call_site(empty, kinds, &is_known);
    check(!is_known, "Python is asked about code that it has not classified");
    in_threads(3, [&](unsigned thread) {
      Random random(seed + thread);
      CodeCache cache;
      for (int nth = 0; nth < 400; ++nth) {
        check_walk(layout, kinds, cache, random);
        if (random.below(100) == 0) {
          kinds.forget();
          cache.clear();
        }
      }
    });
  }
  FakeRuntime other(LAYOUTS[2]);
  check(!use_frames_of(99, other.address()), "those of a Python to come are not");
  check(!use_frames_of(14, nullptr), "nor those of a Python that does not tell them");
  other.set_version(0x030F00F0);
  check(!use_frames_of(14, other.address()), "nor those of another Python than it says");
  other.set_version(0x030E08F0);
  other.set_free_threaded(1);
  check(!use_frames_of(14, other.address()), "nor those of a Python that runs without the GIL");
  other.set_free_threaded(0);
  other.spoil_cookie();
  check(!use_frames_of(14, other.address()), "nor those of something else than a table of offsets");
}

}  // namespace stress
