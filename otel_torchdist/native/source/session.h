// What is recorded in one run of a default group, and how long it lives.
//
// A kernel enters a session before it touches anything of it, and so does the callback of a future; it is freed once it
// has ended and all of them have left. After a fork the child has none.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "call_site.h"
#include "followed.h"
#include "tape.h"

namespace otel_torchdist {

enum class Failure : uint8_t { RUNTIME, BACKEND, NETWORK, STORE, DISTRIBUTED, INDEX, VALUE, TYPE, MEMORY, NOT_IMPLEMENTED };
constexpr size_t FAILURES = 10;

struct Session;

// Counts the operations of one order: see `Channel` in capture/core/calls/call.py, which reads and writes the same number.
struct Counter {
  std::atomic<int64_t> sequence{0};
};

// The sizes of the buckets in which a model's gradients are reduced, and the label of the calls that do that.
struct Buckets {
  uint32_t label;
  std::vector<uint64_t> sizes;
};

// A process group, as far as its calls can be recorded here.
struct Group {
  Session* session = nullptr;
  bool has_one_channel = false;
  std::atomic<bool> is_default{false};
  std::atomic<bool> is_coalescing{false};
  std::atomic<bool> is_synchronized{false};
  std::atomic<const Buckets*> buckets{nullptr};
  Counter next_bucket;  // from 0; -1 if one has come out of turn

  // Earlier buckets are kept: a thread may be reading them. They are rebuilt once.
  void set_buckets(uint32_t label, const uint64_t* sizes, size_t count);

 private:
  std::deque<Buckets> kept_;
};

struct Session {
  Session(int file, uint64_t capacity);

  Tape tape;
  FollowedTable works;
  FollowedTable written;  // by the memory that asynchronous operations write to, on devices too
  CodeKinds code_kinds;
  std::atomic<int64_t> step{0};
  std::atomic<bool> counts_windows{true};
  uint64_t window = 0;
  std::atomic<uint64_t> generation;  // plans of earlier ones are void; no two sessions have the same
  std::atomic<uint32_t> failures[FAILURES] = {};
  const uint64_t forks_before;    // in a forked child the tape is its parent's
  std::atomic<int64_t> users{1};  // Python, and operations whose end is still to be recorded

  bool is_of_parent() const noexcept;

  Group* add_group();
  Counter* add_counter();

 private:
  std::mutex lock_;
  std::deque<Group> groups_;
  std::deque<Counter> counters_;
};

// Keeps the session that records now, if any, from being freed.
class Recording {
 public:
  Recording() noexcept;
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  Session* session() const noexcept { return session_; }

 private:
  Session* session_;
};

void begin_session(Session* session) noexcept;
// Stops recording in a session; it is Python's until `release`.
void end_session(Session* session) noexcept;
void retain(Session* session) noexcept;
void release(Session* session) noexcept;

// Counts forks: what a thread knows of itself is not true in a child.
uint64_t forks() noexcept;

}  // namespace otel_torchdist
