// Plans for recording calls of one kind. Python makes them, and kernels look them up by a key of plain numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "session.h"

namespace otel_torchdist {

class Devices;

// The key of a plan: everything about a call that its record depends on, as words.
class Key {
 public:
  static constexpr size_t MAX_WORDS = 320;

  void clear() noexcept { count_ = 0; }
  // Returns false if the key is too long.
  bool add(uint64_t word) noexcept {
    if (count_ == MAX_WORDS) {
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
  uint64_t words_[MAX_WORDS];
};

// Flags of a plan; `PlanFlag` in native/recording.py.
enum PlanFlag : uint32_t {
  BACKGROUND = 1,     // the caller continues while the operation runs
  CALLBACK = 2,       // the Work's future shows the end
  MAPS_MEMORY = 4,    // a wait may name the output's memory
  SYNCHRONIZING = 8,  // the operation's end proves that every member has entered it
  MESSAGE = 16,       // point to point
  WATCHED = 32,       // the Work is replaced by a `WatchedWork`
  ELSEWHERE = 64,     // on a device, on one of the backend's streams
  WORK_IGNORED = 128,  // on the caller's stream of a device, although there is a Work
  RAGGED = 256,        // calls of all sizes: the key has no shapes, and the size is read from each call
  BUCKETS = 512        // calls may reduce gradient buckets
};

struct Plan {
  Tail tail;
  Group* group;      // null: Python records such calls
  Counter* counter;  // the counter of the calls
  Devices* devices;  // null for the CPU
  uint32_t kind;     // Python's number for group, operation and flags
  uint32_t flags;
  uint32_t ragged_factor;  // ratio of message size to the bytes of a call's tensors

  bool is(PlanFlag flag) const noexcept { return (flags & flag) != 0; }
};

// The plans of one thread. They need no locks, and records name their thread.
class Plans {
 public:
  const Plan* find(const Key& key, uint64_t hash) const noexcept;
  // Returns false if all other plans were dropped to make room.
  bool put(const Key& key, uint64_t hash, const Plan& plan);
  void clear() noexcept;

 private:
  struct Entry {
    uint64_t hash;
    std::vector<uint64_t> key;
    Plan plan;
  };

  void insert(std::unique_ptr<Entry> entry) noexcept;
  void grow();

  size_t count_ = 0;
  std::vector<std::unique_ptr<Entry>> slots_;  // at least twice the number of plans
};

// The state of a thread between calls.
struct ThreadState {
  Plans plans;
  CodeCache codes;
  const Session* session = nullptr;
  uint64_t generation = 0;
  uint64_t forks = 0;
  Key key;
  size_t words_before_shapes = 0;  // in `key`
  Key ragged;           // the key of the last call, without its shapes
  // Whether Python recorded the last call and has not offered a plan yet.
  bool is_pending = false;
  bool has_ragged = false;  // whether `ragged` is valid
  uint32_t label = 0;  // the current label of its calls, written by Python
};

// Returns the calling thread's state, which is reused by another thread when this thread ends.
ThreadState& thread_state();

// Writes the label of the thread, or of the group's buckets, into a record.
void put_label(Plan& plan, const ThreadState& thread) noexcept;

}  // namespace otel_torchdist
