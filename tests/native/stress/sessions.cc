// Sessions that begin and end while threads record in them, and while operations are under way; and forks meanwhile.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "plans.h"
#include "stress.h"

namespace stress {
namespace {

using namespace otel_torchdist;

constexpr uint64_t CAPACITY = 64;
constexpr unsigned CHILD_S = 20;

// A thread that runs what others give it, as gloo's do.
class Backend {
 public:
  Backend() : thread_([this] { run(); }) {}
  ~Backend() {
    give({});
    thread_.join();
  }
  void give(std::function<void()> task) {
    const std::lock_guard<std::mutex> lock(lock_);
    tasks_.push_back(std::move(task));
    has_tasks_.notify_one();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock<std::mutex> lock(lock_);
      has_tasks_.wait(lock, [this] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (!task) {
        return;
      }
      task();
    }
  }

  std::mutex lock_;
  std::condition_variable has_tasks_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

// What a kernel does: enters the session, records, and leaves the end to the backend.
bool record(Backend& backend) {
  const SessionGuard guard;
  Session* session = guard.session();
  if (session == nullptr) {
    return false;
  }
  ThreadState& thread = thread_state();
  if (thread.session != session || thread.generation != session->generation.load()) {
    thread.plans.clear();
    thread.session = session;
    thread.generation = session->generation.load();
  }
  const uint64_t number = session->tape.begin(now_ns(), 0, 0, Tail{});
  retain(session);
  backend.give([session, number] {
    session->tape.complete_at(number, now_ns(), layout::HOW_CALLBACK, 0);
    release(session);
  });
  return true;
}

Session* make_session(const TapeFile& file, std::set<uint64_t>& generations) {
  auto* session = new Session(file.file(), CAPACITY);
  check(session->tape.is_mapped(), "a tape can be mapped");
  check(generations.insert(session->generation.load()).second, "what belongs to another session is void in this one");
  return session;
}

void end_and_release(Session* session) {
  end_session(session);
  release(session);
}

void begin_some(uint64_t seed, const std::atomic<uint64_t>& recorded) {
  Random random(seed);
  std::set<uint64_t> generations;
  std::vector<std::unique_ptr<TapeFile>> files;
  Session* before = nullptr;
  for (int nth = 0; nth < 60; ++nth) {
    files.push_back(std::make_unique<TapeFile>(CAPACITY));
    Session* session = make_session(*files.back(), generations);
    const bool is_late = random.below(3) == 0;  // the one before ends only when this one has begun
    if (before != nullptr && !is_late) {
      end_and_release(before);
    }
    begin_session(session);
    if (before != nullptr && is_late) {
      end_and_release(before);
    }
    const uint64_t enough = recorded + random.below(40);
    while (recorded < enough) {
      std::this_thread::yield();
    }
    session->generation.fetch_add(1);
    generations.insert(session->generation.load());
    before = session;
  }
  end_and_release(before);
}

// Returns whether a child finds everything as a process that records nothing yet.
bool is_as_new(uint64_t forks_before) {
  if (SessionGuard().session() != nullptr || forks() != forks_before + 1) {
    return false;
  }
  const TapeFile file(CAPACITY);
  auto* session = new Session(file.file(), CAPACITY);
  begin_session(session);
  bool is_recorded = false;
  std::thread([&] {
    thread_state().session = session;
    const SessionGuard guard;
    is_recorded = guard.session() == session && session->tape.begin(5, 0, 0, Tail{}) == 1;
  }).join();
  end_and_release(session);
  return is_recorded;
}

void fork_some(unsigned times) {
  for (unsigned nth = 0; nth < times; ++nth) {
    const uint64_t forks_before = forks();
    const pid_t child = fork();
    if (child == 0) {
      alarm(CHILD_S);  // a lock that nobody gives back would be a hang
      _exit(is_as_new(forks_before) ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child records in its own session only",
          static_cast<uint64_t>(status));
  }
}

}  // namespace

void sessions(uint64_t seed) {
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> recorded{0};
  Backend backend;
  in_threads(4, [&](unsigned thread) {
    if (thread == 0) {
      begin_some(seed, recorded);
      is_over = true;
    }
    while (!is_over) {
      recorded += record(backend);
    }
  });
  print("recorded", recorded);
}

void forks_meanwhile(uint64_t) {
  constexpr unsigned FORKS = 12;
  const TapeFile file(CAPACITY);
  auto* session = new Session(file.file(), CAPACITY);
  begin_session(session);
  std::atomic<bool> is_over{false};
  {
    Backend backend;
    in_threads(3, [&](unsigned thread) {
      if (thread == 0) {
        fork_some(FORKS);
        is_over = true;
      }
      while (!is_over) {
        if (thread == 1) {
          record(backend);
        } else {  // threads come and go
          std::thread([] { thread_state().session = nullptr; }).join();
        }
      }
    });
  }
  end_and_release(session);
  print("forks", FORKS);
}

}  // namespace stress
