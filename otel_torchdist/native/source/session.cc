#include "session.h"

#include <pthread.h>
#include <sched.h>

namespace otel_torchdist {
namespace {

std::atomic<Session*> current{nullptr};
std::atomic<bool> is_passing_on{false};
std::atomic<int64_t> entering{0};  // threads between reading `current` and counting as users
std::atomic<uint64_t> fork_count{0};
std::atomic<uint64_t> session_count{0};
constexpr int GENERATION_BITS = 32;

void after_fork_in_child() {
  current.store(nullptr);  // a child is not a rank until it creates its own group
  entering.store(0);
  fork_count.fetch_add(1);
}

[[maybe_unused]] const int session_at_fork = pthread_atfork(nullptr, nullptr, after_fork_in_child);

}  // namespace

// A later session may reuse the address of a freed session, whose state in threads must not be mistaken for its own.
Session::Session(int file, uint64_t capacity)
    : tape(file, capacity),
      generation(session_count.fetch_add(1) << GENERATION_BITS | 1),
      forks_at_start(forks()) {}

bool Session::is_of_parent() const noexcept { return forks_at_start != forks(); }

Group* Session::add_group() {
  const std::lock_guard<std::mutex> lock(lock_);
  Group& group = groups_.emplace_back();
  group.session = this;
  return &group;
}

void Group::set_buckets(uint32_t label, const uint64_t* sizes, size_t count) {
  all_buckets_.push_back({label, {sizes, sizes + count}});
  buckets.store(&all_buckets_.back(), std::memory_order_release);
}

Counter* Session::add_counter() {
  const std::lock_guard<std::mutex> lock(lock_);
  return &counters_.emplace_back();
}

SessionGuard::SessionGuard() noexcept {
  entering.fetch_add(1, std::memory_order_seq_cst);
  session_ = current.load(std::memory_order_seq_cst);
  if (session_ != nullptr) {
    retain(session_);
  }
  entering.fetch_sub(1, std::memory_order_release);
}

SessionGuard::~SessionGuard() {
  if (session_ != nullptr) {
    release(session_);
  }
}

void begin_session(Session* session) noexcept { current.store(session, std::memory_order_seq_cst); }

void end_session(Session* session) noexcept {
  Session* expected = session;
  current.compare_exchange_strong(expected, nullptr, std::memory_order_seq_cst);
  while (entering.load(std::memory_order_seq_cst) != 0) {
    sched_yield();
  }
}

void set_passes_on(bool passes_on) noexcept { is_passing_on.store(passes_on); }

bool passes_on() noexcept { return is_passing_on.load(std::memory_order_relaxed); }

void retain(Session* session) noexcept { session->users.fetch_add(1, std::memory_order_relaxed); }

void release(Session* session) noexcept {
  if (session->users.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete session;
  }
}

uint64_t forks() noexcept { return fork_count.load(std::memory_order_relaxed); }

}  // namespace otel_torchdist
