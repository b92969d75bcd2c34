// A tape, written by many threads: every operation ends exactly once, whoever brings the end, and wherever its record is.
#include <pthread.h>

#include <cstring>
#include <map>
#include <set>

#include "stress.h"

namespace stress {
namespace {

using otel_torchdist::crc32;
using otel_torchdist::seal;
using otel_torchdist::Tail;
using otel_torchdist::Tape;

constexpr unsigned THREADS = 4;
constexpr uint64_t DURATION = 77;

struct Record {
  uint64_t words[layout::RECORD_WORDS];

  uint64_t number() const { return words[0]; }
  layout::Payload payload() const {
    layout::Payload payload;
    std::memcpy(&payload, words + layout::PAYLOAD_WORD, sizeof(payload));
    return payload;
  }
  bool has_own(int which, uint64_t elapsed_ns, unsigned how) const {
    return words[layout::WORDS_WORD + which] == seal(number(), static_cast<int64_t>(elapsed_ns), how);
  }
  bool is_whole() const {
    const auto start = static_cast<uint32_t>(number() % layout::CRC_MODULUS);
    return words[1] == crc32(words + layout::PAYLOAD_WORD, layout::PAYLOAD_WORDS, start);
  }
};

// Copies a record as a reader does; false if it is being written.
bool read(const Word* place, Record* record) {
  record->words[0] = place[0].load(std::memory_order_acquire);
  for (int index = 1; index < layout::RECORD_WORDS; ++index) {
    record->words[index] = place[index].load(std::memory_order_acquire);
  }
  return record->words[0] != 0 && place[0].load(std::memory_order_relaxed) == record->words[0];
}

// All fields of an operation's record follow from one number, so a mixture of two records shows.
layout::Payload payload_of(uint64_t id) {
  layout::Payload payload{};
  payload.entered_ns = id;
  payload.step = static_cast<int64_t>(3 * id);
  payload.sequence = 5 * id;
  payload.message_bytes = 7 * id;
  payload.group = static_cast<uint32_t>(11 * id);
  payload.signature = static_cast<uint32_t>(13 * id);
  payload.thread = static_cast<uint32_t>(17 * id);
  payload.kind = layout::KIND_OPERATION;
  return payload;
}

uint64_t begin(Tape& tape, uint64_t id) {
  const layout::Payload payload = payload_of(id);
  Tail tail;
  std::memcpy(tail.words, reinterpret_cast<const char*>(&payload) + 8 * layout::HEAD_WORDS, sizeof(tail.words));
  return tape.begin(payload.entered_ns, payload.step, payload.sequence, tail);
}

bool end(Tape& tape, uint64_t number, uint64_t id, bool knows_entry) {
  return knows_entry ? tape.complete(number, id, id + DURATION, layout::HOW_WAIT, 0)
                     : tape.complete_at(number, id + DURATION, layout::HOW_WAIT, 0);
}

void check_record(const Record& record) {
  check(record.is_whole(), "a record that is not being written passes its CRC", record.number());
  const layout::Payload payload = record.payload();
  if (payload.kind == layout::KIND_OPERATION) {
    const layout::Payload expected = payload_of(payload.entered_ns);
    check(std::memcmp(&expected, &payload, sizeof(payload)) == 0, "its payload is of one operation", record.number());
  } else {
    // Of what the refuge had no room for, a callback knows no entry.
    check(payload.kind == layout::KIND_LATE_COMPLETION && (payload.message_bytes == DURATION || payload.message_bytes == 1),
          "else it is an end", record.number());
  }
}

void check_refuge_is_free(Tape& tape, const TapeFile& file) {
  for (int slot = 0; slot < layout::REFUGE_SLOTS; ++slot) {
    check(file.in_refuge(slot)[0].load() == 0, "a refuge slot is empty again", static_cast<uint64_t>(slot));
  }
  const uint64_t dropped = file.live(layout::LIVE_RECORDS_DROPPED);
  std::vector<uint64_t> numbers;
  for (uint64_t id = 1; id <= layout::REFUGE_SLOTS; ++id) {
    numbers.push_back(begin(tape, id));
  }
  const layout::Payload other = payload_of(1);
  uint64_t words[layout::PAYLOAD_WORDS];
  std::memcpy(words, &other, sizeof(words));
  while (tape.append(words, nullptr) % 4096 != 0) {
  }
  check(file.live(layout::LIVE_RECORDS_DROPPED) == dropped, "all refuge slots can be used again");
  for (uint64_t id = 1; id <= layout::REFUGE_SLOTS; ++id) {
    check(end(tape, numbers[id - 1], id, false), "what is in the refuge can end", id);
  }
  check(tape.open_numbers(nullptr, 0) == 0, "nothing stays open");
}

// What one phase of `ends` has done, and what is open after it.
struct Phase {
  std::mutex lock;
  std::map<uint64_t, uint64_t> open;   // numbers to ids
  std::map<uint64_t, uint64_t> ended;  // in this phase
  std::set<uint64_t> seen_in_ring;     // by the thread that ended them
  std::atomic<int64_t> room{0};        // records that can still be written without a lap within the phase
};

bool take_open(Phase& phase, Random& random, uint64_t* number, uint64_t* id) {
  const std::lock_guard<std::mutex> lock(phase.lock);
  if (phase.open.empty()) {
    return false;
  }
  auto chosen = phase.open.lower_bound(random.below(phase.open.rbegin()->first + 1));
  *number = chosen->first;
  *id = chosen->second;
  phase.open.erase(chosen);
  return true;
}

void end_one(Tape& tape, const TapeFile& file, Phase& phase, Random& random) {
  uint64_t number;
  uint64_t id;
  if (!take_open(phase, random, &number, &id)) {
    return;
  }
  check(tape.is_open(number), "what has not ended is open, wherever it is", number);
  check(end(tape, number, id, random.below(2) == 0), "the first end counts", number);
  Record record;
  const bool is_there = read(file.in_ring(number), &record) && record.number() == number;
  check(!is_there || record.has_own(layout::WORD_COMPLETED, DURATION, layout::HOW_WAIT), "its end is stored", number);
  check(!tape.is_open(number), "what has ended is not open", number);
  check(!end(tape, number, id, random.below(2) == 0), "a second end does not count", number);
  const std::lock_guard<std::mutex> lock(phase.lock);
  phase.ended[number] = id;
  if (is_there) {
    phase.seen_in_ring.insert(number);
  }
}

void check_open(Tape& tape, const TapeFile& file, const Phase& phase) {
  std::vector<uint64_t> numbers(phase.open.size() + 1);
  check(tape.open_numbers(numbers.data(), numbers.size()) == phase.open.size(), "as many are open as were not ended");
  numbers.pop_back();
  check(std::set<uint64_t>(numbers.begin(), numbers.end()).size() == phase.open.size(), "each is open once");
  std::map<uint64_t, Record> refuge;
  Record record;
  for (int slot = 0; slot < layout::REFUGE_SLOTS; ++slot) {
    if (read(file.in_refuge(slot), &record)) {
      check_record(record);
      check(refuge.emplace(record.number(), record).second, "an operation has one refuge", record.number());
      check(phase.open.count(record.number()) == 1, "only what is open has a refuge", record.number());
    }
  }
  for (const auto& [number, id] : phase.open) {
    const bool is_in_ring = read(file.in_ring(number), &record) && record.number() == number;
    check(is_in_ring != (refuge.count(number) == 1), "what is open is in the ring or in the refuge", number);
    check((is_in_ring ? record : refuge[number]).payload().entered_ns == id, "and it is its own record", number);
  }
}

// Returns how many ends were neither late nor seen before their slot was used again.
uint64_t check_ends(const TapeFile& file, const Phase& phase, uint64_t from, uint64_t* left_out) {
  std::set<uint64_t> late;
  Record record;
  for (uint64_t number = from; number < file.live(layout::LIVE_NEXT_NUMBER); ++number) {
    if (!read(file.in_ring(number), &record) || record.number() != number) {
      check(phase.open.count(number) + phase.ended.count(number) == 0, "a number that was given out is there", number);
      ++*left_out;
      continue;
    }
    check_record(record);
    if (record.payload().kind == layout::KIND_LATE_COMPLETION) {
      check(late.insert(record.payload().sequence).second, "an operation ends late once", number);
      check(phase.ended.count(record.payload().sequence) == 1, "only what was ended ends late", number);
    }
  }
  uint64_t unseen = 0;
  for (const auto& ended : phase.ended) {
    const bool is_late = late.count(ended.first) == 1;
    const bool is_seen = phase.seen_in_ring.count(ended.first) == 1;
    check(!is_late || !is_seen, "an end is in one place", ended.first);
    unseen += !is_late && !is_seen;
  }
  return unseen;
}

}  // namespace

// A ring so small that threads are overtaken by whole laps while they write; ends come late, twice, and from others.
void laps(uint64_t seed) {
  constexpr uint64_t CAPACITY = 16;
  constexpr uint64_t OPERATIONS = 20'000;
  const TapeFile file(CAPACITY);
  Tape tape(file.file(), CAPACITY);
  std::vector<Word> numbers(THREADS * OPERATIONS + 1);
  std::vector<std::atomic<int>> ends(numbers.size());
  Word held[96] = {};
  std::atomic<unsigned> writing{THREADS};

  const auto end_held = [&](Word& place, uint64_t successor, Random& random) {
    const uint64_t id = place.exchange(successor);
    if (id != 0) {
      tape.mark(numbers[id], layout::WORD_WAIT_ENTERED, 3, layout::HOW_CALL);
      ends[id] += end(tape, numbers[id], id, random.below(2) == 0);
    }
  };
  const auto write = [&](unsigned thread) {
    Random random(seed + thread);
    for (uint64_t id = thread * OPERATIONS + 1; id <= (thread + 1) * OPERATIONS; ++id) {
      numbers[id] = begin(tape, id);
      tape.mark(numbers[id], layout::WORD_RETURNED, 2, layout::HOW_CALL);
      end_held(held[random.below(96)], id, random);
      if (random.below(4) == 0) {  // two threads may bring its end
        end_held(held[random.below(96)], id, random);
      }
    }
    --writing;
  };
  in_threads(THREADS + 1, [&](unsigned thread) {
    if (thread < THREADS) {
      write(thread);
      return;
    }
    uint64_t whole = 0;
    while (writing != 0) {
      Record record;
      for (uint64_t slot = 0; slot < CAPACITY + layout::REFUGE_SLOTS; ++slot) {
        if (read(slot < CAPACITY ? file.in_ring(slot) : file.in_refuge(static_cast<int>(slot - CAPACITY)), &record)) {
          check_record(record);
          ++whole;
        }
      }
    }
    print("read", whole);
  });
  Random random(seed);
  for (Word& place : held) {
    end_held(place, 0, random);
  }
  std::set<uint64_t> distinct;
  for (uint64_t id = 1; id < numbers.size(); ++id) {
    check(ends[id] == 1, "every operation ends exactly once", id);
    check(distinct.insert(numbers[id]).second, "no number is given out twice", numbers[id]);
  }
  check_refuge_is_free(tape, file);
  print("operations", distinct.size());
  print("dropped", file.live(layout::LIVE_RECORDS_DROPPED));
}

// In phases that write less than a lap, so that after each of them every record and every end can be found.
void ends(uint64_t seed) {
  constexpr uint64_t CAPACITY = 128;
  constexpr int PHASES = 150;
  constexpr size_t MAX_OPEN = 60;  // less than the refuge holds
  const TapeFile file(CAPACITY);
  Tape tape(file.file(), CAPACITY);
  Phase phase;
  std::atomic<uint64_t> ids{0};
  pthread_barrier_t begins;
  pthread_barrier_t over;
  pthread_barrier_init(&begins, nullptr, THREADS);
  pthread_barrier_init(&over, nullptr, THREADS);
  uint64_t all = 0;
  uint64_t unseen = 0;
  uint64_t left_out = 0;

  const auto begin_one = [&] {
    const uint64_t id = ++ids;
    const uint64_t number = begin(tape, id);
    tape.mark(number, layout::WORD_RETURNED, 2, layout::HOW_CALL);
    const std::lock_guard<std::mutex> lock(phase.lock);
    check(phase.open.emplace(number, id).second, "no number is given out twice", number);
  };
  in_threads(THREADS, [&](unsigned thread) {
    Random random(seed + thread);
    for (int nth = 0; nth < PHASES; ++nth) {
      const uint64_t from = file.live(layout::LIVE_NEXT_NUMBER);
      if (thread == 0) {
        phase.ended.clear();
        phase.seen_in_ring.clear();
        phase.room = CAPACITY - THREADS;
      }
      pthread_barrier_wait(&begins);
      while (phase.room.fetch_sub(1) > 0) {
        bool is_full;
        {
          const std::lock_guard<std::mutex> lock(phase.lock);
          is_full = phase.open.size() >= MAX_OPEN - THREADS;
        }
        if (is_full || random.below(2) == 0) {
          end_one(tape, file, phase, random);
        } else {
          begin_one();
        }
      }
      pthread_barrier_wait(&over);
      if (thread == 0) {
        check_open(tape, file, phase);
        unseen += check_ends(file, phase, from, &left_out);
        all += phase.ended.size();
      }
    }
  });
  check(file.live(layout::LIVE_RECORDS_DROPPED) == 0, "nothing is dropped while the refuge has room");
  check(unseen * 50 <= all, "nearly all ends could be checked", unseen);
  for (const auto& [number, id] : phase.open) {
    check(end(tape, number, id, true), "what is left can end", number);
  }
  check_refuge_is_free(tape, file);
  print("ended", all);
  print("unseen", unseen);
  print("left_out", left_out);
  pthread_barrier_destroy(&begins);
  pthread_barrier_destroy(&over);
}

}  // namespace stress
