// How calls of one kind are recorded: found once by Python, then looked up by a key of plain numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "session.h"

namespace otel_torchdist {

class Devices;

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
  void copy(const Key& other, size_t count) noexcept {
    std::copy(other.words_, other.words_ + count, words_);
    count_ = count;
  }
  const uint64_t* begin() const noexcept { return words_; }
  size_t size() const noexcept { return count_; }
  uint64_t hash() const noexcept;

 private:
  size_t count_ = 0;
  uint64_t words_[MOST];
};

// How the calls of a plan are recorded; `PlanFlag` in native/recording.py.
enum PlanFlag : uint32_t {
  LEFT_ALONE = 1,     // the caller goes on while they run
  CALLBACK = 2,       // their Work has a future that shows the end
  MAPS_MEMORY = 4,    // a wait may name the memory that they write to
  SYNCHRONIZING = 8,  // their end proves that every member has entered
  MESSAGE = 16,       // point to point
  WATCHED = 32,       // their Work is replaced by one that shows when it is dropped
  ELSEWHERE = 64,     // on a device: not on the caller's stream
  WORK_IGNORED = 128,  // on a device: on the caller's stream, although there is a Work
  RAGGED = 256,        // calls of all sizes: the key has no shapes, and each record has its own size
  BUCKETS = 512        // they may reduce buckets of gradients
};

struct Plan {
  Tail tail;
  Group* group;      // null: such calls are left to Python
  Counter* counter;  // of operations like these
  Devices* devices;  // null: they run on the CPU
  uint32_t kind;     // Python's number for group, operation and flags
  uint32_t flags;
  uint32_t ragged_factor;  // of the bytes of a call's tensors

  bool is(PlanFlag flag) const noexcept { return (flags & flag) != 0; }
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

  void place(std::unique_ptr<Entry> entry) noexcept;
  void grow();

  size_t count_ = 0;
  std::vector<std::unique_ptr<Entry>> slots_;  // at least twice as many as plans
};

// What a thread keeps from call to call.
struct ThreadState {
  Plans plans;
  CodeCache codes;
  const Session* session = nullptr;
  uint64_t generation = 0;
  uint64_t forks = 0;
  Key key;
  size_t unshaped = 0;  // words of the key before the shapes
  Key ragged;           // the key of calls like the last one, whatever their shapes
  // Whether the last call was left to Python, until that says how such calls are recorded.
  bool is_pending = false;
  bool has_ragged = false;
  uint32_t label = 0;  // what its calls are for at this moment, written by Python
};

// The calling thread's; handed on to another thread when this one ends.
ThreadState& thread_state();

// Puts what a call is for into its record, if its thread or the group's buckets say that.
void put_label(Plan& plan, const ThreadState& thread) noexcept;

}  // namespace otel_torchdist
