#include "devices.h"

#include <ATen/core/ivalue.h>
#include <c10/core/Stream.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "completion.h"

namespace otel_torchdist {
namespace {

constexpr uint32_t MAX_IN_FLIGHT = 4096;
constexpr uint64_t SECOND_NS = 1'000'000'000;
constexpr int UNKNOWN_ERROR = 999;  // `cudaErrorUnknown`
constexpr uint64_t FIRST_TIMED = 32;
constexpr uint64_t PAIR_EVERY = 32;
constexpr uint64_t HASH = 0x9E3779B97F4A7C15U;

// `c10::cuda::CUDAStream` has a `c10::Stream` as its only member, so both are returned the same way.
using GetCurrentStream = c10::Stream (*)(c10::DeviceIndex);
using GetHandle = void* (*)(const c10::Stream*);
GetCurrentStream get_current_stream = nullptr;
GetHandle get_handle = nullptr;

int current_stream_of_torch(int device, void** handle) {
  try {
    const c10::Stream stream = get_current_stream(static_cast<c10::DeviceIndex>(device));
    *handle = get_handle(&stream);
    return 0;
  } catch (...) {
    return UNKNOWN_ERROR;
  }
}

bool begins_pair(uint64_t sequence) noexcept { return sequence * HASH <= UINT64_MAX / PAIR_EVERY; }

}  // namespace

bool is_timed(uint64_t sequence) noexcept {
  return sequence <= FIRST_TIMED || begins_pair(sequence) || begins_pair(sequence - 1);
}

CurrentStream stream_of_torch(void* get_current, void* handle) {
  get_current_stream = reinterpret_cast<GetCurrentStream>(get_current);
  get_handle = reinterpret_cast<GetHandle>(handle);
  return current_stream_of_torch;
}

struct Devices::Entry {
  std::atomic<uint32_t> state{0};
  int device = 0;
  void* before = nullptr;
  void* after = nullptr;
  c10::intrusive_ptr<c10::ivalue::Future> result;  // the watchdog's result, which holds no tensor
};

Devices::Devices(const CudaFunctions& functions, uint32_t max_events)
    : functions_(functions), max_events_(max_events), entries_(std::make_unique<Entry[]>(MAX_IN_FLIGHT)) {
  free_slots_.reserve(MAX_IN_FLIGHT);
  for (uint32_t slot = MAX_IN_FLIGHT; slot > 0; --slot) {
    free_slots_.push_back(slot - 1);
  }
}

// Reads the error, too: CUDA keeps it for the thread until then, and the program's next check would report it.
bool Devices::check(int code) noexcept {
  if (code == 0) {
    return true;
  }
  functions_.last_error();
  int expected = 0;
  if (failure_.compare_exchange_strong(expected, code)) {
    wake();
  }
  return false;
}

// An event belongs to the device that is current when it is created.
void* Devices::take_event(int device) noexcept {
  {
    const std::lock_guard<std::mutex> lock(lock_);
    Events& events = events_[device];
    if (!events.free.empty()) {
      void* event = events.free.back();
      events.free.pop_back();
      return event;
    }
    if (events.created >= max_events_) {
      return nullptr;
    }
    ++events.created;
  }
  int previous_device = 0;
  void* event = nullptr;
  if (!check(functions_.get_device(&previous_device)) ||
      (previous_device != device && !check(functions_.set_device(device)))) {
    return nullptr;
  }
  if (!check(functions_.create_event(&event, 0))) {
    event = nullptr;
  }
  if (previous_device != device) {
    check(functions_.set_device(previous_device));
  }
  return event;
}

// A null stream is the default stream of the current device, so the device must be current.
bool Devices::record(void* event, int device, void* stream) noexcept {
  return stream != nullptr ? check(functions_.record(event, stream)) : record_on_default(event, device);
}

bool Devices::record_on_default(void* event, int device) noexcept {
  int previous_device = 0;
  if (!check(functions_.get_device(&previous_device)) ||
      (previous_device != device && !check(functions_.set_device(device)))) {
    return false;
  }
  bool is_recorded = check(functions_.record(event, nullptr));
  if (previous_device != device) {
    is_recorded = check(functions_.set_device(previous_device)) && is_recorded;
  }
  return is_recorded;
}

// Events recorded on a captured stream become part of the graph. The default stream is never captured.
bool Devices::find_stream(int device, void** stream) noexcept {
  int is_capturing = 0;
  return check(functions_.current_stream(device, stream)) &&
         (*stream == nullptr || (check(functions_.is_capturing(*stream, &is_capturing)) && is_capturing == 0));
}

bool Devices::prepare(int device, bool is_elsewhere, DeviceItem* item) noexcept {
  if (!is_usable()) {
    return false;
  }
  void* stream = nullptr;
  if (!find_stream(device, &stream)) {
    return false;
  }
  *item = {};
  item->device = device;
  item->stream = stream;
  item->before = take_event(device);
  item->after = is_elsewhere || item->before == nullptr ? nullptr : take_event(device);
  const bool has_events = item->before != nullptr && (is_elsewhere || item->after != nullptr);
  bool has_slot = false;
  if (has_events) {
    const std::lock_guard<std::mutex> lock(lock_);
    has_slot = !free_slots_.empty();
    if (has_slot) {
      item->slot = free_slots_.back();
      free_slots_.pop_back();
    }
  }
  if (!has_slot || !record(item->before, device, stream)) {
    give_back(device, item->before);
    give_back(device, item->after);
    if (has_slot) {
      const std::lock_guard<std::mutex> lock(lock_);
      free_slots_.push_back(item->slot);
    }
    return false;
  }
  Entry& entry = entries_[item->slot];
  entry.device = device;
  entry.before = item->before;
  entry.after = item->after;
  entry.state.store(0, std::memory_order_relaxed);
  return true;
}

void Devices::hand_over(const DeviceItem& item) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(lock_);
    inbox_.push_back(item);
  } catch (const std::bad_alloc&) {  // its end will not be recorded
    return;
  }
  if (is_asleep_.load(std::memory_order_seq_cst)) {
    wake();
  }
}

void Devices::entered(const DeviceItem& item) noexcept {
  if (item.is_timed != 0) {
    entries_[item.slot].state.fetch_or(IS_TIMED, std::memory_order_relaxed);
  }
  hand_over(item);
}

bool Devices::issued(const DeviceItem& item, c10d::Work* work) noexcept {
  Entry& entry = entries_[item.slot];
  if (work == nullptr) {
    const bool is_followed = item.after != nullptr && is_usable() && record(item.after, item.device, item.stream);
    entry.state.fetch_or(is_followed ? IS_ISSUED : IS_VOID, std::memory_order_release);
    return is_followed;
  }
  try {
    entry.result = work->getFutureResult();
  } catch (...) {  // the backend has no such future
    entry.result.reset();
  }
  if (entry.result == nullptr) {
    entry.state.fetch_or(IS_VOID, std::memory_order_release);
    return false;
  }
  entry.state.fetch_or(IS_ELSEWHERE, std::memory_order_release);
  return true;
}

void Devices::refused(const DeviceItem& item) noexcept {
  entries_[item.slot].state.fetch_or(IS_VOID, std::memory_order_release);
}

bool Devices::wait_begins(uint64_t number, uint32_t slot, int device, DeviceItem* wait) noexcept {
  // After the operation's end, its slot may belong to another one. Python recognizes a wait for the earlier one.
  if (!is_usable() || (entries_[slot].state.load(std::memory_order_relaxed) & IS_TIMED) == 0) {
    return false;
  }
  *wait = {};
  wait->entered_ns = now_ns();
  wait->number = number;
  wait->slot = slot;
  wait->device = device;
  wait->is_wait = 1;
  if (!find_stream(device, &wait->stream)) {
    return false;
  }
  wait->before = take_event(device);
  wait->after = wait->before != nullptr ? take_event(device) : nullptr;
  if (wait->after == nullptr || !record(wait->before, device, wait->stream)) {
    give_back(device, wait->before);
    give_back(device, wait->after);
    return false;
  }
  return true;
}

void Devices::wait_ends(DeviceItem& wait) noexcept {
  if (is_usable() && record(wait.after, wait.device, wait.stream)) {
    wait.took_ns = now_ns() - wait.entered_ns;
    hand_over(wait);
    return;
  }
  wait_raised(wait);
}

void Devices::wait_raised(const DeviceItem& wait) noexcept {
  give_back(wait.device, wait.before);
  give_back(wait.device, wait.after);
}

size_t Devices::take(DeviceItem* items, size_t size) noexcept {
  const std::lock_guard<std::mutex> lock(lock_);
  size_t count = 0;
  for (; count < size && !inbox_.empty(); ++count) {
    items[count] = inbox_.front();
    inbox_.pop_front();
  }
  return count;
}

uint32_t Devices::state(uint32_t slot) noexcept {
  Entry& entry = entries_[slot];
  const uint32_t bits = entry.state.load(std::memory_order_acquire);
  if ((bits & IS_ELSEWHERE) == 0 || !entry.result->completed()) {
    return bits;
  }
  try {
    if (!entry.result->hasError()) {
      return bits | (1 + static_cast<uint32_t>(entry.result->constValue().toInt())) << RESULT_SHIFT;
    }
  } catch (...) {  // not a number, so not the watchdog's result
  }
  return bits | (RESULT_FAILED + static_cast<uint32_t>(failure_of(entry.result->exception_ptr()))) << RESULT_SHIFT;
}

void Devices::release(uint32_t slot) noexcept {
  Entry& entry = entries_[slot];
  entry.result.reset();
  give_back(entry.device, entry.before);
  give_back(entry.device, entry.after);
  const std::lock_guard<std::mutex> lock(lock_);
  free_slots_.push_back(slot);  // room was reserved
}

void Devices::give_back(int device, void* event) noexcept {
  if (event == nullptr) {
    return;
  }
  const std::lock_guard<std::mutex> lock(lock_);
  try {
    events_[device].free.push_back(event);
  } catch (const std::bad_alloc&) {  // the event is lost
  }
}

size_t Devices::drain(void** events, size_t size) noexcept {
  const std::lock_guard<std::mutex> lock(lock_);
  size_t count = 0;
  for (auto& [device, events_of_device] : events_) {
    for (; count < size && !events_of_device.free.empty(); ++count) {
      events[count] = events_of_device.free.back();
      events_of_device.free.pop_back();
    }
  }
  return count;
}

void Devices::sleep(int64_t timeout_ns) noexcept {
  if (timeout_ns >= 0) {
    const uint64_t until_ns = now_ns() + static_cast<uint64_t>(timeout_ns);
    for (uint64_t now = now_ns(); is_woken_.load() == 0 && now < until_ns; now = now_ns()) {
      const auto left_ns = until_ns - now;
      const timespec time{static_cast<time_t>(left_ns / SECOND_NS), static_cast<long>(left_ns % SECOND_NS)};
      syscall(SYS_futex, &is_woken_, FUTEX_WAIT_PRIVATE, 0, &time, nullptr, 0);
    }
  } else {
    is_asleep_.store(true, std::memory_order_seq_cst);
    while (is_woken_.load() == 0 && !has_items()) {
      syscall(SYS_futex, &is_woken_, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
    }
    is_asleep_.store(false, std::memory_order_seq_cst);
  }
  is_woken_.store(0);
}

bool Devices::has_items() noexcept {
  const std::lock_guard<std::mutex> lock(lock_);
  return !inbox_.empty();
}

void Devices::wake() noexcept {
  is_woken_.store(1);
  syscall(SYS_futex, &is_woken_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace otel_torchdist
