// Tables of operations that a caller may wait for, by the address of the Work, or of the output's memory.
//
// A Work that is never waited for leaves an entry behind. The entry is replaced when its address is reused, or when its
// operation is over and another entry needs room. So the table has a fixed size.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace otel_torchdist {

class Devices;
struct Group;

// An operation whose end a wait may show.
struct FollowedOperation {
  uint64_t number = 0;
  uint64_t entered_ns = 0;
  Group* group = nullptr;
  Devices* devices = nullptr;  // null for the CPU
  uint32_t kind = 0;           // Python's number for group, operation and flags
  uint32_t flags = 0;          // `PlanFlag`
  uint32_t device_slot = 0;    // index among the operations in flight on devices
  int32_t device = 0;
};

class Tape;

class FollowedTable {
 public:
  FollowedTable();

  // Returns false if there is no room or no address. Empty tensors have no address.
  bool put(const void* address, const FollowedOperation& followed, Tape& tape) noexcept;
  // Copies an entry, and optionally removes it. Returns false if there is none.
  bool find(const void* address, FollowedOperation* found, bool remove) noexcept;

 private:
  static constexpr size_t BUCKETS = 256;
  static constexpr size_t SLOTS_PER_BUCKET = 8;
  struct Slot {
    const void* address = nullptr;
    FollowedOperation followed;
  };
  struct Bucket {
    std::atomic_flag lock = ATOMIC_FLAG_INIT;
    Slot slots[SLOTS_PER_BUCKET];
  };
  class BucketLock;

  Bucket& bucket_of(const void* address) noexcept;

  std::unique_ptr<Bucket[]> buckets_;
};

}  // namespace otel_torchdist
