// How calls of one kind are recorded: found once by Python, then looked up by a key of plain numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "session.h"

namespace otel_torchdist {

// What distinguishes calls that are recorded differently.
class Key {
 public:
  static constexpr size_t MOST = 320;

  void clear() noexcept { count_ = 0; }
  // Returns false if the key has become too long.
  bool add(uint64_t word) noexcept {
    if (count_ == MOST) {
      return false;
    }
    words_[count_++] = word;
    return true;
  }
  const uint64_t* begin() const noexcept { return words_; }
  size_t size() const noexcept { return count_; }
  uint64_t hash() const noexcept;

 private:
  size_t count_ = 0;
  uint64_t words_[MOST];
};

struct Plan {
  Tail tail;
  Group* group;  // null: such calls are left to Python
  Channel* channel;
  uint32_t kind;
  bool is_left_alone;
  bool has_callback;
  bool maps_memory;
  bool is_synchronizing;
};

// The plans of one thread, so without locks: records name their thread.
class Plans {
 public:
  const Plan* find(const Key& key, uint64_t hash) const noexcept;
  // Returns false if all others had to be forgotten for it.
  bool put(const Key& key, uint64_t hash, const Plan& plan);
  void clear() noexcept;

 private:
  struct Entry {
    uint64_t hash;
    std::vector<uint64_t> key;
    Plan plan;
  };

  size_t count_ = 0;
  std::vector<std::unique_ptr<Entry>> slots_;
};

// What a thread keeps from call to call.
struct ThreadState {
  Plans plans;
  CodeCache codes;
  const Session* session = nullptr;
  uint64_t generation = 0;
  uint64_t forks = 0;
  Key key;
  // The key of a call that was left to Python, and its hash, until Python says how such calls are recorded.
  bool is_pending = false;
  uint64_t pending_hash = 0;
};

// The calling thread's; handed on to another thread when this one ends.
ThreadState& thread_state();

}  // namespace otel_torchdist
