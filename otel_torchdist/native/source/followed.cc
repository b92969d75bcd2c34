#include "followed.h"

#include <sched.h>

#include "tape.h"

namespace otel_torchdist {

// A spin lock, held for a few instructions. A waiting thread yields the CPU.
class FollowedTable::BucketLock {
 public:
  explicit BucketLock(Bucket& bucket) noexcept : bucket_(bucket) {
    while (bucket_.lock.test_and_set(std::memory_order_acquire)) {
      sched_yield();
    }
  }
  ~BucketLock() { bucket_.lock.clear(std::memory_order_release); }

 private:
  Bucket& bucket_;
};

FollowedTable::FollowedTable() : buckets_(std::make_unique<Bucket[]>(BUCKETS)) {}

FollowedTable::Bucket& FollowedTable::bucket_of(const void* address) noexcept {
  const auto number = reinterpret_cast<uint64_t>(address) >> 4;
  return buckets_[(number * 0x9E3779B97F4A7C15U >> 32) % BUCKETS];
}

bool FollowedTable::put(const void* address, const FollowedOperation& followed, Tape& tape) noexcept {
  if (address == nullptr) {
    return false;
  }
  Bucket& bucket = bucket_of(address);
  const BucketLock locked(bucket);
  Slot* free = nullptr;
  for (Slot& slot : bucket.slots) {
    if (slot.address == address) {
      free = &slot;
      break;
    }
    if (free == nullptr && slot.address == nullptr) {
      free = &slot;
    }
  }
  for (Slot& slot : bucket.slots) {
    if (free != nullptr) {
      break;
    }
    if (!tape.is_open(slot.followed.number)) {
      free = &slot;
    }
  }
  if (free == nullptr) {
    return false;
  }
  *free = {address, followed};
  return true;
}

bool FollowedTable::find(const void* address, FollowedOperation* found, bool remove) noexcept {
  if (address == nullptr) {
    return false;
  }
  Bucket& bucket = bucket_of(address);
  const BucketLock locked(bucket);
  for (Slot& slot : bucket.slots) {
    if (slot.address == address) {
      *found = slot.followed;
      if (remove) {
        slot.address = nullptr;
      }
      return true;
    }
  }
  return false;
}

}  // namespace otel_torchdist
