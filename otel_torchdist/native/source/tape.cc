#include "tape.h"

#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <array>

namespace otel_torchdist {
namespace {

constexpr int NOT_KEPT = -1;  // an open operation that was overwritten in the ring while the refuge was full
constexpr uint64_t MAX_SEARCHED = 64;  // newest records that `find_record_entered_at` searches
constexpr int MAX_TRIES = 16;          // attempts to claim a slot in which another thread is busy
// Flags beside the operation's number in a slot. Without flags, the operation is open.
constexpr uint64_t ENDED = uint64_t{1} << 62;
constexpr uint64_t BUSY = uint64_t{1} << 63;  // a thread is writing its record, or its end
constexpr uint64_t EMPTY_WORDS[layout::WORDS] = {};

using CrcTables = std::array<std::array<uint32_t, 256>, 8>;

// Slicing by eight: a table for each byte of a word, so that bytes are processed independently.
constexpr CrcTables make_crc_tables() {
  CrcTables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) ? 0xEDB88320U : 0U);
    }
    tables[0][byte] = value;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t table = 1; table < 8; ++table) {
      const uint32_t previous = tables[table - 1][byte];
      tables[table][byte] = (previous >> 8) ^ tables[0][previous & 0xFF];
    }
  }
  return tables;
}

constexpr CrcTables CRC = make_crc_tables();

}  // namespace

uint64_t now_ns() noexcept {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<uint64_t>(time.tv_nsec);
}

uint64_t seal(uint64_t number, int64_t value, unsigned how) noexcept {
  const int64_t clipped = std::clamp<int64_t>(value, 0, layout::MAX_DURATION_NS);
  const uint64_t content = (static_cast<uint64_t>(clipped) << 4) | how;
  return (content << 12) | ((content + number) % layout::CHECK_MODULUS);
}

uint32_t crc32(const uint64_t* words, size_t count, uint32_t start) noexcept {
  uint32_t crc = ~start;
  for (size_t index = 0; index < count; ++index) {
    const uint64_t word = words[index] ^ crc;
    crc = CRC[7][word & 0xFF] ^ CRC[6][(word >> 8) & 0xFF] ^ CRC[5][(word >> 16) & 0xFF] ^ CRC[4][(word >> 24) & 0xFF] ^
          CRC[3][(word >> 32) & 0xFF] ^ CRC[2][(word >> 40) & 0xFF] ^ CRC[1][(word >> 48) & 0xFF] ^ CRC[0][word >> 56];
  }
  return ~crc;
}

Tape::Tape(int file, uint64_t capacity) noexcept : capacity_(capacity) {
  const size_t size = layout::RING_OFFSET + capacity * layout::RECORD_SIZE;
  void* map = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (map == MAP_FAILED) {
    return;
  }
  try {
    slots_ = std::make_unique<Word[]>(capacity);
    free_refuge_.reserve(layout::REFUGE_SLOTS);
    refuge_of_.reserve(layout::REFUGE_SLOTS);
  } catch (...) {
    munmap(map, size);
    return;
  }
  for (int slot = 0; slot < layout::REFUGE_SLOTS; ++slot) {
    free_refuge_.push_back(slot);
  }
  words_ = static_cast<Word*>(map);
  size_ = size;
}

Tape::~Tape() {
  if (words_ != nullptr) {
    munmap(static_cast<void*>(words_), size_);
  }
}

void Tape::publish(uint64_t number, const uint64_t* payload, const uint64_t* record_words) noexcept {
  Word* word = in_ring(number);
  const auto start = static_cast<uint32_t>(number % layout::CRC_MODULUS);
  word[0].store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  word[1].store(crc32(payload, layout::PAYLOAD_WORDS, start), std::memory_order_relaxed);
  for (size_t index = 0; index < layout::PAYLOAD_WORDS; ++index) {
    word[layout::PAYLOAD_WORD + index].store(payload[index], std::memory_order_relaxed);
  }
  for (size_t index = 0; index < layout::WORDS; ++index) {
    word[layout::WORDS_WORD + index].store(record_words[index], std::memory_order_relaxed);
  }
  word[0].store(number, std::memory_order_release);
}

// Draws a number and claims its slot, to which no other thread writes until `unclaim`. Skips a number if its slot does
// not become free, because a thread was interrupted in it for a whole lap of the ring. Readers tolerate this.
uint64_t Tape::draw() noexcept {
  while (true) {
    const uint64_t number = words_[layout::LIVE_NEXT_NUMBER].fetch_add(1, std::memory_order_relaxed);
    if (claim(number)) {
      return number;
    }
  }
}

bool Tape::claim(uint64_t number) noexcept {
  Word& slot = slots_[number % capacity_];
  for (int tries = 0; tries < MAX_TRIES;) {
    uint64_t state = slot.load(std::memory_order_relaxed);
    if ((state & BUSY) != 0) {
      sched_yield();
      ++tries;
    } else if ((state & ~ENDED) > number) {
      return false;  // this thread was interrupted for a whole lap of the ring
    } else if (state != 0 && (state & ENDED) == 0) {
      if (take_refuge(state, number)) {
        return true;
      }
    } else if (slot.compare_exchange_weak(state, number | BUSY, std::memory_order_acquire, std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

void Tape::unclaim(uint64_t number, uint64_t state) noexcept {
  slots_[number % capacity_].store(number | state, std::memory_order_release);
}

uint64_t Tape::begin(uint64_t entered_ns, int64_t step, uint64_t sequence, const Tail& tail) noexcept {
  uint64_t payload[layout::PAYLOAD_WORDS] = {entered_ns, static_cast<uint64_t>(step), sequence};
  std::copy(std::begin(tail.words), std::end(tail.words), payload + layout::HEAD_WORDS);
  const uint64_t number = draw();
  publish(number, payload, EMPTY_WORDS);
  unclaim(number, 0);
  return number;
}

uint64_t Tape::append(const uint64_t* payload, const uint64_t* record_words) noexcept {
  const uint64_t number = draw();
  publish(number, payload, record_words != nullptr ? record_words : EMPTY_WORDS);
  unclaim(number, ENDED);
  return number;
}

// Moves an open operation out of the slot that `successor` claims. Returns false if it has ended meanwhile.
bool Tape::take_refuge(uint64_t number, uint64_t successor) noexcept {
  const std::lock_guard<std::mutex> lock(lap_lock_);
  uint64_t expected = number;
  if (!slots_[number % capacity_].compare_exchange_strong(expected, successor | BUSY, std::memory_order_acq_rel)) {
    return false;
  }
  Word* source = in_ring(number);
  source[0].store(0, std::memory_order_release);  // from here on, marks go to the refuge and wait for the lock
  int slot = NOT_KEPT;
  try {
    int& kept = refuge_of_[number] = NOT_KEPT;
    if (!free_refuge_.empty()) {
      kept = slot = free_refuge_.back();
      free_refuge_.pop_back();
    }
  } catch (...) {  // no memory: its end will not be recorded
  }
  if (slot == NOT_KEPT) {
    add(layout::LIVE_RECORDS_DROPPED, 1);
    return true;
  }
  Word* target = in_refuge(slot);
  for (size_t index = 1; index < layout::RECORD_WORDS; ++index) {
    target[index].store(source[index].load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  target[0].store(number, std::memory_order_release);
  return true;
}

void Tape::mark(uint64_t number, unsigned word_index, int64_t elapsed_ns, unsigned how) noexcept {
  Word* word = in_ring(number);
  if (word[0].load(std::memory_order_acquire) == number) {
    word[layout::WORDS_WORD + word_index].store(seal(number, elapsed_ns, how), std::memory_order_release);
    return;
  }
  const std::lock_guard<std::mutex> lock(lap_lock_);
  const auto found = refuge_of_.find(number);
  if (found != refuge_of_.end() && found->second != NOT_KEPT) {
    in_refuge(found->second)[layout::WORDS_WORD + word_index].store(seal(number, elapsed_ns, how),
                                                                    std::memory_order_release);
  }
}

void Tape::clear(uint64_t number, unsigned word_index) noexcept {
  Word* word = in_ring(number);
  if (word[0].load(std::memory_order_acquire) == number) {
    word[layout::WORDS_WORD + word_index].store(0, std::memory_order_release);
    return;
  }
  const std::lock_guard<std::mutex> lock(lap_lock_);
  const auto found = refuge_of_.find(number);
  if (found != refuge_of_.end() && found->second != NOT_KEPT) {
    in_refuge(found->second)[layout::WORDS_WORD + word_index].store(0, std::memory_order_release);
  }
}

bool Tape::complete(uint64_t number, uint64_t entered_ns, uint64_t ended_ns, unsigned how, uint32_t failure) noexcept {
  uint64_t expected = number;
  if (number == 0 ||
      !slots_[number % capacity_].compare_exchange_strong(expected, number | BUSY, std::memory_order_acq_rel)) {
    return complete_elsewhere(number, entered_ns, ended_ns, how, failure);
  }
  const int64_t elapsed_ns = std::max<int64_t>(static_cast<int64_t>(ended_ns - entered_ns), 1);
  if (failure != 0) {
    mark(number, layout::WORD_FAILURE, failure, layout::HOW_FAILED);
  }
  in_ring(number)[layout::WORDS_WORD + layout::WORD_COMPLETED].store(seal(number, elapsed_ns, how),
                                                                     std::memory_order_release);
  unclaim(number, ENDED);
  return true;
}

bool Tape::complete_at(uint64_t number, uint64_t ended_ns, unsigned how, uint32_t failure) noexcept {
  Word* word = in_ring(number);
  uint64_t entered_ns = word[layout::PAYLOAD_WORD].load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (word[0].load(std::memory_order_relaxed) != number) {
    const std::lock_guard<std::mutex> lock(lap_lock_);
    const auto found = refuge_of_.find(number);
    if (found == refuge_of_.end()) {
      return false;
    }
    // An operation that was not kept has no record. Its end shows that it is over, without a duration.
    entered_ns = found->second == NOT_KEPT ? ended_ns : in_refuge(found->second)[layout::PAYLOAD_WORD].load();
  }
  return complete(number, entered_ns, ended_ns, how, failure);
}

bool Tape::complete_elsewhere(uint64_t number, uint64_t entered_ns, uint64_t ended_ns, unsigned how,
                              uint32_t failure) noexcept {
  int refuge = NOT_KEPT;
  {
    const std::lock_guard<std::mutex> lock(lap_lock_);  // another thread may be moving it to the refuge
    const auto found = refuge_of_.find(number);
    if (found == refuge_of_.end()) {
      return false;
    }
    refuge = found->second;
    refuge_of_.erase(found);
  }
  const int64_t elapsed_ns = std::max<int64_t>(static_cast<int64_t>(ended_ns - entered_ns), 1);
  complete_late(number, refuge, entered_ns, static_cast<uint64_t>(elapsed_ns), how, failure);
  return true;
}

// Writes a separate completion record for an operation that has left the ring, with a copy of its words.
void Tape::complete_late(uint64_t number, int refuge, uint64_t entered_ns, uint64_t elapsed_ns, unsigned how,
                         uint32_t failure) noexcept {
  uint64_t record_words[layout::WORDS] = {};
  for (size_t index = 0; refuge != NOT_KEPT && index < layout::WORDS; ++index) {
    record_words[index] = in_refuge(refuge)[layout::WORDS_WORD + index].load(std::memory_order_acquire);
  }
  layout::Payload payload{};
  payload.entered_ns = entered_ns;
  payload.sequence = number;
  payload.message_bytes = elapsed_ns;
  payload.signature = failure;
  payload.peer = static_cast<int32_t>(how);
  payload.kind = layout::KIND_LATE_COMPLETION;
  uint64_t words[layout::PAYLOAD_WORDS];
  static_assert(sizeof(words) == sizeof(payload));
  __builtin_memcpy(words, &payload, sizeof(words));
  append(words, record_words);
  if (refuge == NOT_KEPT) {
    return;
  }
  const std::lock_guard<std::mutex> lock(lap_lock_);
  in_refuge(refuge)[0].store(0, std::memory_order_release);
  in_refuge(refuge)[1].store(0, std::memory_order_release);  // without its CRC, no flipped bit can make it valid again
  free_refuge_.push_back(refuge);                            // room was reserved
}

uint64_t Tape::find_record_entered_at(uint64_t entered_ns) noexcept {
  const uint64_t newest = words_[layout::LIVE_NEXT_NUMBER].load(std::memory_order_relaxed) - 1;
  const uint64_t oldest = newest > MAX_SEARCHED ? newest - MAX_SEARCHED : 0;
  for (uint64_t number = newest; number > oldest; --number) {
    Word* word = in_ring(number);
    const bool is_match = word[0].load(std::memory_order_acquire) == number &&
                          word[layout::PAYLOAD_WORD].load(std::memory_order_relaxed) == entered_ns;
    if (is_match && word[layout::WORDS_WORD + layout::WORD_COMPLETED].load(std::memory_order_relaxed) == 0) {
      return number;
    }
  }
  return 0;
}

bool Tape::is_open(uint64_t number) noexcept {
  const uint64_t state = slots_[number % capacity_].load(std::memory_order_acquire);
  if (state == number || state == (number | ENDED)) {
    return state == number && number != 0;
  }
  const std::lock_guard<std::mutex> lock(lap_lock_);
  return refuge_of_.count(number) != 0;
}

size_t Tape::open_numbers(uint64_t* numbers, size_t size) noexcept {
  size_t count = 0;
  const auto put = [&](uint64_t number) {
    if (count < size) {
      numbers[count] = number;
    }
    ++count;
  };
  const std::lock_guard<std::mutex> lock(lap_lock_);
  for (const auto& [number, slot] : refuge_of_) {
    put(number);
  }
  for (uint64_t slot = 0; slot < capacity_; ++slot) {
    const uint64_t number = slots_[slot].load(std::memory_order_relaxed);
    if (number != 0 && number < ENDED) {
      put(number);
    }
  }
  return count;
}

void Tape::add(unsigned live_word, uint64_t value) noexcept {
  words_[live_word].fetch_add(value, std::memory_order_relaxed);
}

}  // namespace otel_torchdist
