// Tables of operations that a caller may wait for, by the address of the Work or of the output's memory.
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

struct Followed {
  uint64_t number = 0;
  uint64_t entered_ns = 0;
  Group* group = nullptr;
  Devices* devices = nullptr;  // null for the CPU
  uint32_t kind = 0;           // Python's number for group, operation and flags
  uint32_t flags = 0;          // `PlanFlag`
  uint32_t place = 0;          // index among operations on devices
  int32_t device = 0;
};

class Tape;

class FollowedTable {
 public:
  FollowedTable();

  // Returns false if there is no room or no address. Empty tensors have no address.
  bool put(const void* address, const Followed& followed, Tape& tape) noexcept;
  // Copies an entry, and optionally removes it. Returns false if there is none.
  bool find(const void* address, Followed* found, bool remove) noexcept;

 private:
  static constexpr size_t BUCKETS = 256;
  static constexpr size_t DEPTH = 8;
  struct Slot {
    const void* address = nullptr;
    Followed followed;
  };
  struct Bucket {
    std::atomic_flag lock = ATOMIC_FLAG_INIT;
    Slot slots[DEPTH];
  };
  class Locked;

  Bucket& bucket_of(const void* address) noexcept;

  std::unique_ptr<Bucket[]> buckets_;
};

}  // namespace otel_torchdist
