// The writing side of a tape, for any number of threads and without Python: see tape/writer.py, whose twin this is.
//
// The file is mapped a second time, and stays mapped until no thread writes to it any more: threads of gloo store the
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

// What calls of one plan have in common in their records, as packed by `TapeWriter.prepare`.
struct Tail {
  uint64_t words[layout::TAIL_WORDS];
};

class Tape {
 public:
  // Maps an open file, which the caller may close afterwards. `is_mapped` shows whether that was possible.
  Tape(int file, uint64_t capacity) noexcept;
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  bool is_mapped() const noexcept { return words_ != nullptr; }

  // Publishes an operation as entered; returns its number.
  uint64_t begin(uint64_t entered_ns, int64_t step, uint64_t sequence, const Tail& tail) noexcept;
  // Publishes a record that does not stay open.
  uint64_t append(const uint64_t* payload, const uint64_t* own_words) noexcept;
  // Stores one of a record's words, in the refuge if the record is there.
  void mark(uint64_t number, unsigned which, int64_t elapsed_ns, unsigned how) noexcept;
  void clear(uint64_t number, unsigned which) noexcept;
  // Records an end. The first caller wins; returns whether it was this one.
  bool complete(uint64_t number, uint64_t entered_ns, uint64_t ended_ns, unsigned how, uint32_t failure) noexcept;
  // The same for a caller that does not know when the operation was entered.
  bool complete_at(uint64_t number, uint64_t ended_ns, unsigned how, uint32_t failure) noexcept;
  // The open operation among the newest ones that was entered at this time; 0 if there is none.
  uint64_t begun_at(uint64_t entered_ns) noexcept;

  bool is_open(uint64_t number) noexcept;
  // Writes the numbers of open operations, at most `size`; returns how many there are.
  size_t open_numbers(uint64_t* numbers, size_t size) noexcept;
  void add(unsigned live_word, uint64_t value) noexcept;

 private:
  using Word = std::atomic<uint64_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == 8, "readers in other processes share these words");

  uint64_t draw() noexcept;
  void publish(uint64_t number, const uint64_t* payload, const uint64_t* own_words) noexcept;
  bool claim(uint64_t number) noexcept;
  void leave(uint64_t number, uint64_t state) noexcept;
  bool take_refuge(uint64_t number, uint64_t successor) noexcept;
  bool complete_elsewhere(uint64_t number, uint64_t entered_ns, uint64_t ended_ns, unsigned how, uint32_t failure) noexcept;
  void complete_late(uint64_t number, int refuge, uint64_t entered_ns, uint64_t elapsed_ns, unsigned how,
                     uint32_t failure) noexcept;
  Word* in_ring(uint64_t number) noexcept { return words_ + layout::RING_WORD + number % capacity_ * layout::RECORD_WORDS; }
  Word* in_refuge(int slot) noexcept { return words_ + layout::REFUGE_WORD + slot * layout::RECORD_WORDS; }

  const uint64_t capacity_;
  Word* words_ = nullptr;
  size_t size_ = 0;
  // By slot of the ring the number of its operation, and whether that is open; an exchange here decides which end is first.
  std::unique_ptr<Word[]> slots_;
  // What has left the ring while it was open; taken only when that happens.
  std::mutex lap_lock_;
  std::unordered_map<uint64_t, int> refuge_of_;
  std::vector<int> free_refuge_;
};

uint64_t now_ns() noexcept;
uint64_t seal(uint64_t number, int64_t value, unsigned how) noexcept;
uint32_t crc32(const uint64_t* words, size_t count, uint32_t start) noexcept;

}  // namespace otel_torchdist
