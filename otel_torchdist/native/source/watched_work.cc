#include "watched_work.h"

namespace otel_torchdist {

WatchedWork::WatchedWork(c10::intrusive_ptr<c10d::Work> actual, Session& session, uint64_t number) noexcept
    : Work(-1, actual->retrieveOpType()), actual_(std::move(actual)), session_(session), number_(number), forks_(forks()) {
  retain(&session_);
}

// The end is recorded here, too: a C++ caller may drop the Work right after its wait.
bool WatchedWork::wait(std::chrono::milliseconds timeout) {
  const bool is_over = actual_->wait(timeout);
  if (forks_ == forks()) {
    session_.tape.complete_at(number_, now_ns(), layout::HOW_WAIT, 0);
  }
  return is_over;
}

WatchedWork::~WatchedWork() {
  if (forks_ != forks()) {
    return;  // a forked child's copy of the parent's operation
  }
  FollowedOperation followed;
  session_.works.find(this, &followed, /*remove=*/true);
  if (session_.tape.is_open(number_)) {
    session_.tape.complete_at(number_, now_ns(), layout::HOW_ABANDONED, 0);
  }
  release(&session_);
}

}  // namespace otel_torchdist
