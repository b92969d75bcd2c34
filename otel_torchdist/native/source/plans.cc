#include "plans.h"

#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace otel_torchdist {
namespace {

constexpr size_t MOST_PLANS = 2048;
constexpr size_t SLOTS = 4096;  // a power of two

struct Pool {
  std::mutex lock;
  std::vector<ThreadState*> free;
};

Pool& pool() {
  static Pool* pool = new Pool;  // never freed: threads end after static objects are destroyed
  return *pool;
}

// In a forked child there is no other thread that could give the lock back.
[[maybe_unused]] const int pool_at_fork = pthread_atfork([] { pool().lock.lock(); }, [] { pool().lock.unlock(); },
                                                       [] { pool().lock.unlock(); });

class Holder {
 public:
  Holder() {
    Pool& all = pool();
    const std::lock_guard<std::mutex> lock(all.lock);
    if (all.free.empty()) {
      state_ = new ThreadState;
    } else {
      state_ = all.free.back();
      all.free.pop_back();
      state_->session = nullptr;  // its plans name the thread that had them
      state_->label = 0;
    }
  }
  ~Holder() {
    Pool& all = pool();
    const std::lock_guard<std::mutex> lock(all.lock);
    all.free.push_back(state_);
  }
  ThreadState& state() { return *state_; }

 private:
  ThreadState* state_;
};

constexpr int LABEL_BITS = 16;

// The number of the bucket that a message has, from 1; 0 if that is not certain. `Buckets.put_label` in
// capture/c10d/calls/buckets.py does the same.
uint32_t piece_of(Group& group, const Buckets& buckets, uint64_t size) noexcept {
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
    const uint32_t piece = buckets != nullptr ? piece_of(*plan.group, *buckets, plan.tail.words[0]) : 0;
    label = piece != 0 && buckets->label != 0 ? buckets->label | piece << LABEL_BITS : 0;
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
  for (size_t place = hash % SLOTS; slots_[place] != nullptr; place = (place + 1) % SLOTS) {
    const Entry& entry = *slots_[place];
    if (entry.hash == hash && std::equal(entry.key.begin(), entry.key.end(), key.begin(), key.begin() + key.size())) {
      return &entry.plan;
    }
  }
  return nullptr;
}

bool Plans::put(const Key& key, uint64_t hash, const Plan& plan) {
  const bool is_full = count_ >= MOST_PLANS;
  if (is_full) {  // shapes that never repeat
    clear();
  }
  if (slots_.empty()) {
    slots_.resize(SLOTS);
  }
  size_t place = hash % SLOTS;
  while (slots_[place] != nullptr) {
    place = (place + 1) % SLOTS;
  }
  slots_[place] = std::make_unique<Entry>(Entry{hash, {key.begin(), key.begin() + key.size()}, plan});
  ++count_;
  return !is_full;
}

void Plans::clear() noexcept {
  slots_.clear();
  count_ = 0;
}

ThreadState& thread_state() {
  thread_local Holder holder;
  return holder.state();
}

}  // namespace otel_torchdist
