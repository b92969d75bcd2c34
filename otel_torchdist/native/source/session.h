// The recording of one run of a default group, and its lifetime.
//
// Kernels and callbacks of futures retain a session while they use it. It is freed once it has ended and all users
// have released it. A forked child has no session.
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

// The counter of a channel. `GroupChannel` in capture/core/calls/channels.py reads and writes the same number.
struct Counter {
  std::atomic<int64_t> sequence{0};
};

// The sizes of a model's gradient buckets, and the label of the calls that reduce them.
struct Buckets {
  uint32_t label;
  std::vector<uint64_t> sizes;
};

// A process group.
struct Group {
  Session* session = nullptr;
  bool has_one_channel = false;
  std::atomic<bool> is_default{false};
  std::atomic<bool> is_coalescing{false};
  std::atomic<bool> is_synchronized{false};
  std::atomic<const Buckets*> buckets{nullptr};
  Counter next_bucket;  // from 0; -1 after a call out of order

  // Keeps earlier buckets, because a thread may be reading them. DDP rebuilds them once.
  void set_buckets(uint32_t label, const uint64_t* sizes, size_t count);

 private:
  std::deque<Buckets> all_buckets_;
};

struct Session {
  Session(int file, uint64_t capacity);

  Tape tape;
  FollowedTable works;
  FollowedTable written;  // asynchronous operations, on the CPU and on devices, by their output's memory
  CodeKinds code_kinds;
  std::atomic<int64_t> step{0};
  std::atomic<bool> counts_windows{true};
  uint64_t window = 0;
  std::atomic<uint64_t> generation;  // plans of earlier generations are void; unique among sessions
  std::atomic<uint32_t> failures[FAILURES] = {};
  const uint64_t forks_at_start;  // differs in a forked child, where the tape is the parent's
  std::atomic<int64_t> users{1};  // Python, and operations in flight

  bool is_of_parent() const noexcept;

  Group* add_group();
  Counter* add_counter();

 private:
  std::mutex lock_;
  std::deque<Group> groups_;
  std::deque<Counter> counters_;
};

// Keeps the current session, if any, from being freed.
class SessionGuard {
 public:
  SessionGuard() noexcept;
  ~SessionGuard();
  SessionGuard(const SessionGuard&) = delete;
  SessionGuard& operator=(const SessionGuard&) = delete;

  Session* session() const noexcept { return session_; }

 private:
  Session* session_;
};

void begin_session(Session* session) noexcept;
// Stops recording in a session. Python owns it until `release`.
void end_session(Session* session) noexcept;
// While nothing is recorded in this process, calls need not pass through Python.
void set_passes_on(bool passes_on) noexcept;
bool passes_on() noexcept;
void retain(Session* session) noexcept;
void release(Session* session) noexcept;

// Returns the number of forks. The state of a thread is invalid in a child.
uint64_t forks() noexcept;

}  // namespace otel_torchdist
