// What the scenarios share: random numbers, a tape's file, and a report of what did not hold.
//
// A scenario runs the parts of the library that need no torch, in many threads, under a sanitizer.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "tape.h"

namespace stress {

namespace layout = otel_torchdist::layout;
using Word = std::atomic<uint64_t>;

// Reports a fact that must hold and does not; the process then ends with an error.
void check(bool holds, const char* fact, uint64_t value = 0);
bool has_failed();
// Prints a figure of the scenario, for the test that reads it.
void print(const char* name, uint64_t value);

// Xorshift: the same numbers for the same seed.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U | 1) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  uint64_t below(uint64_t bound) { return next() % bound; }

 private:
  uint64_t state_;
};

// A file in memory that is large enough for a tape, and a map of it as a reader has.
class TapeFile {
 public:
  explicit TapeFile(uint64_t capacity);
  ~TapeFile();
  TapeFile(const TapeFile&) = delete;
  TapeFile& operator=(const TapeFile&) = delete;

  int file() const { return file_; }
  const Word* in_ring(uint64_t number) const {
    return words_ + layout::RING_WORD + number % capacity_ * layout::RECORD_WORDS;
  }
  const Word* in_refuge(int slot) const { return words_ + layout::REFUGE_WORD + slot * layout::RECORD_WORDS; }
  uint64_t live(int word) const { return words_[word].load(); }

 private:
  const uint64_t capacity_;
  const size_t size_;
  int file_;
  Word* words_;
};

// Runs a function in several threads, which it gets the index of, until all have returned.
template <typename Function>
void in_threads(unsigned count, const Function& function) {
  std::vector<std::thread> threads;
  for (unsigned index = 0; index < count; ++index) {
    threads.emplace_back([&function, index] { function(index); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void laps(uint64_t seed);
void ends(uint64_t seed);
void plans(uint64_t seed);
void followed(uint64_t seed);
void call_sites(uint64_t seed);
void sessions(uint64_t seed);
void forks_meanwhile(uint64_t seed);

}  // namespace stress
