// Records an event before each operation on a device and, if it runs on the caller's stream, an event after it, both on
// the calling thread. A Python thread polls the events: see capture/core/cuda.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace c10d {
class Work;
}

namespace otel_torchdist {

// The CUDA runtime that torch uses. Python looks up its functions, so this library links no CUDA runtime.
struct CudaFunctions {
  int (*current_stream)(int device, void** stream);
  int (*is_capturing)(void* stream, int* status);
  int (*create_event)(void** event, unsigned flags);
  int (*record)(void* event, void* stream);
  int (*get_device)(int* device);
  int (*set_device)(int device);
  int (*last_error)();
};

// Returns the current stream by torch's functions, which return C++ objects.
using CurrentStream = int (*)(int device, void** stream);
CurrentStream stream_of_torch(void* get_current_stream, void* get_handle);

// An item for Python's thread: an operation, or a stream's wait for an operation; `DeviceItem` in native/devices.py.
struct DeviceItem {
  uint64_t number;
  uint64_t entered_ns;  // for a wait: when the host began to enqueue it
  uint64_t took_ns;     // for a wait: time to enqueue it
  void* stream;
  void* before;
  void* after;    // null for an operation on one of the backend's streams
  void* session;  // the session of its tape
  uint32_t slot;  // index of the operation among those in flight
  uint32_t kind;
  int32_t device;
  int32_t peer;
  uint32_t is_wait;
  uint32_t is_timed;  // whether waits for the operation are timed
};

enum DeviceState : uint32_t {
  IS_ISSUED = 1,     // the event after the operation is recorded
  IS_VOID = 2,       // the backend refused the operation, or its end will not be observed
  IS_ELSEWHERE = 4,  // the operation runs on one of the backend's streams, and the watchdog reports its end
  IS_TIMED = 8,      // waits for the operation are timed
  RESULT_SHIFT = 8   // the bits from here on hold the watchdog's result: 1 plus its `WorkResult`, or `RESULT_FAILED`
};
// For a failed watchdog, the result is this plus a `Failure`.
constexpr uint32_t RESULT_FAILED = 100;

// Returns whether waits for an operation are timed, by its number in its communicator; see capture/core/cuda/queues.py.
bool is_timed(uint64_t sequence) noexcept;

class Devices {
 public:
  Devices(const CudaFunctions& functions, uint32_t max_events);
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  // --- on the threads of the program ---

  // Takes events for an operation, and records the event before it. `is_elsewhere`: it runs on one of the backend's
  // streams. Returns false if it cannot be followed: while a graph is captured, after a device error, or with too many
  // operations in flight.
  bool prepare(int device, bool is_elsewhere, DeviceItem* item) noexcept;
  // Hands the operation over before the backend gets it, because it may hang there.
  void entered(const DeviceItem& item) noexcept;
  // Records that the backend has accepted the operation. It has a Work if it runs on one of the backend's streams.
  // Returns whether its end will be observed.
  bool issued(const DeviceItem& item, c10d::Work* work) noexcept;
  void refused(const DeviceItem& item) noexcept;

  // Records that the current stream is about to wait for an operation. Returns false if the wait is not timed.
  bool wait_begins(uint64_t number, uint32_t slot, int device, DeviceItem* wait) noexcept;
  void wait_ends(DeviceItem& wait) noexcept;
  // Drops a wait that raised.
  void wait_raised(const DeviceItem& wait) noexcept;

  // --- on Python's thread ---

  // Writes the items since the last call, at most `size`.
  size_t take(DeviceItem* items, size_t size) noexcept;
  // Returns bits of `DeviceState`, and above `RESULT_SHIFT` the watchdog's result.
  uint32_t state(uint32_t slot) noexcept;
  // Frees the slot of a completed operation, and its events.
  void release(uint32_t slot) noexcept;
  void give_back(int device, void* event) noexcept;
  // Takes all free events, to destroy them.
  size_t drain(void** events, size_t size) noexcept;
  int failure() const noexcept { return failure_.load(std::memory_order_relaxed); }
  void stop() noexcept { is_stopped_.store(true, std::memory_order_relaxed); }
  // Waits until `wake` or the timeout. Without a timeout, new items also end the wait.
  void sleep(int64_t timeout_ns) noexcept;
  void wake() noexcept;

 private:
  struct Entry;
  struct Events {
    std::vector<void*> free;
    uint32_t created = 0;
  };

  bool is_usable() const noexcept { return failure() == 0 && !is_stopped_.load(std::memory_order_relaxed); }
  bool check(int code) noexcept;
  // Finds the current stream. Returns false if events cannot be recorded on it.
  bool find_stream(int device, void** stream) noexcept;
  void* take_event(int device) noexcept;
  bool record(void* event, int device, void* stream) noexcept;
  bool record_on_default(void* event, int device) noexcept;
  void hand_over(const DeviceItem& item) noexcept;
  bool has_items() noexcept;

  const CudaFunctions functions_;
  const uint32_t max_events_;
  std::atomic<int> failure_{0};
  std::atomic<bool> is_stopped_{false};

  std::mutex lock_;  // for all members below except the entries' states
  std::unique_ptr<Entry[]> entries_;
  std::vector<uint32_t> free_slots_;
  std::unordered_map<int, Events> events_;
  std::deque<DeviceItem> inbox_;

  // A futex: the standard library's condition variables need a newer glibc than wheels may expect.
  std::atomic<uint32_t> is_woken_{0};
  std::atomic<bool> is_asleep_{false};
};

}  // namespace otel_torchdist
