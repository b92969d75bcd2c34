#include "plans.h"

#include <limits.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

// glibc 2.34 changed the symbol versions of libpthread. Wheels are for glibc 2.28 and later.
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver pthread_key_create, pthread_key_create@GLIBC_2.2.5");
__asm__(".symver pthread_setspecific, pthread_setspecific@GLIBC_2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
__asm__(".symver pthread_key_create, pthread_key_create@GLIBC_2.17");
__asm__(".symver pthread_setspecific, pthread_setspecific@GLIBC_2.17");
#endif

namespace otel_torchdist {
namespace {

constexpr size_t MAX_PLANS = 2048;
constexpr size_t MIN_PLAN_SLOTS = 16;  // all sizes are powers of two; most threads make few kinds of calls

struct Pool {
  std::mutex lock;
  std::vector<ThreadState*> free;
};

Pool& pool() {
  static Pool* pool = new Pool;  // never freed: threads end after static objects are destroyed
  return *pool;
}

// In a forked child, no other thread could release the lock.
[[maybe_unused]] const int pool_at_fork = pthread_atfork([] { pool().lock.lock(); }, [] { pool().lock.unlock(); },
                                                       [] { pool().lock.unlock(); });

thread_local ThreadState* state_of_thread = nullptr;

void give_back(void* state) {
  state_of_thread = nullptr;
  Pool& states = pool();
  const std::lock_guard<std::mutex> lock(states.lock);
  states.free.push_back(static_cast<ThreadState*>(state));
}

// The destructor of a `thread_local` object would run once, before the destructors of keys, which may communicate. A
// key's destructor runs again if a later one has taken a state.
pthread_key_t make_thread_key() {
  pthread_key_t key;
  return pthread_key_create(&key, give_back) == 0 ? key : PTHREAD_KEYS_MAX;
}

ThreadState* take_state() {
  static const pthread_key_t key = make_thread_key();
  Pool& states = pool();
  ThreadState* state = nullptr;
  {
    const std::lock_guard<std::mutex> lock(states.lock);
    if (!states.free.empty()) {
      state = states.free.back();
      states.free.pop_back();
      state->session = nullptr;  // its plans name the previous thread
      state->label = 0;
    }
  }
  state = state != nullptr ? state : new ThreadState;
  state_of_thread = state;
  pthread_setspecific(key, state);
  return state;
}

constexpr int LABEL_BITS = 16;

// Returns the number of a message's bucket, from 1, or 0 if uncertain. The same as `Buckets.put_label` in
// capture/core/calls/buckets.py.
uint32_t bucket_number_of(Group& group, const Buckets& buckets, uint64_t size) noexcept {
  const int64_t next = group.next_bucket.sequence.load(std::memory_order_relaxed);
  if (next >= 0 && static_cast<size_t>(next) < buckets.sizes.size() && buckets.sizes[next] == size) {
    group.next_bucket.sequence.store(next + 1, std::memory_order_relaxed);
    return static_cast<uint32_t>(next + 1);
  }
  if (std::find(buckets.sizes.begin(), buckets.sizes.end(), size) != buckets.sizes.end()) {
    group.next_bucket.sequence.store(-1, std::memory_order_relaxed);
  }
  return 0;
}

}  // namespace

void put_label(Plan& plan, const ThreadState& thread) noexcept {
  uint32_t label = thread.label;
  if (label == 0 && plan.is(BUCKETS)) {
    const Buckets* buckets = plan.group->buckets.load(std::memory_order_acquire);
    const uint32_t bucket = buckets != nullptr ? bucket_number_of(*plan.group, *buckets, plan.tail.words[0]) : 0;
    label = bucket != 0 && buckets->label != 0 ? buckets->label | bucket << LABEL_BITS : 0;
  }
  if (label != 0) {
    std::memcpy(reinterpret_cast<char*>(plan.tail.words) + layout::LABEL_OFFSET, &label, sizeof(label));
  }
}

uint64_t Key::hash() const noexcept {
  uint64_t hash = 0xCBF29CE484222325U;
  for (size_t index = 0; index < count_; ++index) {
    hash = (hash ^ words_[index]) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

const Plan* Plans::find(const Key& key, uint64_t hash) const noexcept {
  if (slots_.empty()) {
    return nullptr;
  }
  const size_t mask = slots_.size() - 1;
  for (size_t index = hash & mask; slots_[index] != nullptr; index = (index + 1) & mask) {
    const Entry& entry = *slots_[index];
    if (entry.hash == hash && std::equal(entry.key.begin(), entry.key.end(), key.begin(), key.begin() + key.size())) {
      return &entry.plan;
    }
  }
  return nullptr;
}

bool Plans::put(const Key& key, uint64_t hash, const Plan& plan) {
  const bool is_full = count_ >= MAX_PLANS;
  if (is_full) {  // probably because shapes never repeat
    clear();
  }
  auto entry = std::make_unique<Entry>(Entry{hash, {key.begin(), key.begin() + key.size()}, plan});
  if (2 * count_ >= slots_.size()) {
    grow();
  }
  insert(std::move(entry));
  ++count_;
  return !is_full;
}

void Plans::insert(std::unique_ptr<Entry> entry) noexcept {
  const size_t mask = slots_.size() - 1;
  size_t index = entry->hash & mask;
  while (slots_[index] != nullptr) {
    index = (index + 1) & mask;
  }
  slots_[index] = std::move(entry);
}

void Plans::grow() {
  std::vector<std::unique_ptr<Entry>> old_slots(std::max(2 * slots_.size(), MIN_PLAN_SLOTS));
  slots_.swap(old_slots);
  for (auto& entry : old_slots) {
    if (entry != nullptr) {
      insert(std::move(entry));
    }
  }
}

void Plans::clear() noexcept {
  std::vector<std::unique_ptr<Entry>>().swap(slots_);  // frees its memory
  count_ = 0;
}

ThreadState& thread_state() {
  ThreadState* state = state_of_thread;
  return state != nullptr ? *state : *take_state();
}

}  // namespace otel_torchdist
