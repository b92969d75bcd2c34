// Runs one scenario: `stress NAME SEED`.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "stress.h"

namespace stress {
namespace {

std::atomic<bool> failed{false};

struct Scenario {
  const char* name;
  void (*run)(uint64_t);
};

constexpr Scenario SCENARIOS[] = {
    {"laps", laps},         {"ends", ends},         {"plans", plans}, {"followed", followed},
    {"call_sites", call_sites}, {"sessions", sessions}, {"forks", forks_meanwhile},
};

}  // namespace

void check(bool holds, const char* fact, uint64_t value) {
  if (!holds && !failed.exchange(true)) {
    std::fprintf(stderr, "does not hold: %s (%llu)\n", fact, static_cast<unsigned long long>(value));
  }
}

bool has_failed() { return failed.load(); }

void print(const char* name, uint64_t value) { std::printf("%s %llu\n", name, static_cast<unsigned long long>(value)); }

TapeFile::TapeFile(uint64_t capacity)
    : capacity_(capacity), size_(layout::RING_OFFSET + capacity * layout::RECORD_SIZE), file_(memfd_create("tape", 0)) {
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(size_)) != 0) {
    std::perror("tape");
    std::abort();
  }
  words_ = static_cast<Word*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
  words_[layout::LIVE_NEXT_NUMBER].store(1);
}

TapeFile::~TapeFile() {
  munmap(static_cast<void*>(words_), size_);
  close(file_);
}

}  // namespace stress

int main(int count, char** arguments) {
  for (const stress::Scenario& scenario : stress::SCENARIOS) {
    if (count == 3 && std::strcmp(scenario.name, arguments[1]) == 0) {
      scenario.run(std::strtoull(arguments[2], nullptr, 10));
      return stress::has_failed() ? 1 : 0;
    }
  }
  std::fprintf(stderr, "usage: stress NAME SEED\n");
  return 2;
}
