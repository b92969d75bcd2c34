// Writes a tape from any number of threads, without Python. The counterpart of tape/writer.py.
//
// The file is mapped a second time, and stays mapped until no thread writes to it any more: gloo's threads write the
// ends of operations after Python has closed the tape.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "layout.h"

namespace otel_torchdist {

// The constant part of a plan's records, packed by `TapeWriter.prepare`.
struct Tail {
  uint64_t words[layout::TAIL_WORDS];
};

class Tape {
 public:
  // Maps an open file, which the caller may close afterwards. `is_mapped` shows whether it succeeded.
  Tape(int file, uint64_t capacity) noexcept;
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  bool is_mapped() const noexcept { return words_ != nullptr; }

  // Records an operation as entered, and returns its number.
  uint64_t begin(uint64_t entered_ns, int64_t step, uint64_t sequence, const Tail& tail) noexcept;
  // Writes a record that is not open.
  uint64_t append(const uint64_t* payload, const uint64_t* record_words) noexcept;
  // Writes a word of a record, in the ring or in the refuge.
  void mark(uint64_t number, unsigned word_index, int64_t elapsed_ns, unsigned how) noexcept;
  void clear(uint64_t number, unsigned word_index) noexcept;
  // Records an end. Only the first end counts. Returns whether this was the first.
  bool complete(uint64_t number, uint64_t entered_ns, uint64_t ended_ns, unsigned how, uint32_t failure) noexcept;
  // Records an end without knowing when the operation was entered.
  bool complete_at(uint64_t number, uint64_t ended_ns, unsigned how, uint32_t failure) noexcept;
  // Returns the recent open operation that was entered at this time, or 0.
  uint64_t find_record_entered_at(uint64_t entered_ns) noexcept;

  bool is_open(uint64_t number) noexcept;
  // Writes the numbers of open operations, at most `size`. Returns their total number.
  size_t open_numbers(uint64_t* numbers, size_t size) noexcept;
  void add(unsigned live_word, uint64_t value) noexcept;

 private:
  using Word = std::atomic<uint64_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == 8, "readers in other processes share these words");

  uint64_t draw() noexcept;
  void publish(uint64_t number, const uint64_t* payload, const uint64_t* record_words) noexcept;
  bool claim(uint64_t number) noexcept;
  void unclaim(uint64_t number, uint64_t state) noexcept;
  bool take_refuge(uint64_t number, uint64_t successor) noexcept;
  bool complete_elsewhere(uint64_t number, uint64_t entered_ns, uint64_t ended_ns, unsigned how, uint32_t failure) noexcept;
  void complete_late(uint64_t number, int refuge, uint64_t entered_ns, uint64_t elapsed_ns, unsigned how,
                     uint32_t failure) noexcept;
  Word* in_ring(uint64_t number) noexcept { return words_ + layout::RING_WORD + number % capacity_ * layout::RECORD_WORDS; }
  Word* in_refuge(int slot) noexcept { return words_ + layout::REFUGE_WORD + slot * layout::RECORD_WORDS; }

  const uint64_t capacity_;
  Word* words_ = nullptr;
  size_t size_ = 0;
  // For each slot of the ring: number and state of its operation. An atomic exchange decides which end is the first.
  std::unique_ptr<Word[]> slots_;
  // Open operations that have left the ring: their slots in the refuge, and the free slots there.
  std::mutex lap_lock_;
  std::unordered_map<uint64_t, int> refuge_of_;
  std::vector<int> free_refuge_;
};

// Returns the monotonic time.
uint64_t now_ns() noexcept;
// Packs a duration and how it is known into a word, with a check value that depends on the record's number.
uint64_t seal(uint64_t number, int64_t value, unsigned how) noexcept;
uint32_t crc32(const uint64_t* words, size_t count, uint32_t start) noexcept;

}  // namespace otel_torchdist
