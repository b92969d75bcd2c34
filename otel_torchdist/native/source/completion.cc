#include "completion.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace otel_torchdist {
namespace {

// Gloo calls it on its own thread just before the operation counts as complete, or at once if it is over already. It is
// trivially copyable and has 16 bytes, so that no memory is taken for it.
class OnEnd {
 public:
  OnEnd(Group* group, uint64_t number, bool is_synchronizing) noexcept
      : group_(group), number_(number << 1 | static_cast<uint64_t>(is_synchronizing)) {}

  void operator()(c10::ivalue::Future& future) const noexcept {
    const uint64_t ended_ns = now_ns();
    Session& session = *group_->session;
    const uint64_t number = number_ >> 1;
    if (future.hasError()) {
      const auto failure = static_cast<size_t>(failure_of(future.exception_ptr()));
      session.tape.complete_at(number, ended_ns, layout::HOW_FAILED, session.failures[failure].load());
    } else {
      session.tape.complete_at(number, ended_ns, layout::HOW_CALLBACK, 0);
      if ((number_ & 1) != 0) {
        group_->is_synchronized.store(true, std::memory_order_relaxed);
      }
    }
    release(&session);
  }

 private:
  Group* group_;
  uint64_t number_;
};
static_assert(sizeof(OnEnd) == 16 && std::is_trivially_copyable_v<OnEnd>);

}  // namespace

Failure failure_of(const std::exception_ptr& error) noexcept {
  if (error == nullptr) {
    return Failure::RUNTIME;  // no exception: Python ends a thread at exit by unwinding it
  }
  try {
    std::rethrow_exception(error);
  } catch (const c10::DistBackendError&) {
    return Failure::BACKEND;
  } catch (const c10::DistNetworkError&) {
    return Failure::NETWORK;
  } catch (const c10::DistStoreError&) {
    return Failure::STORE;
  } catch (const c10::DistError&) {
    return Failure::DISTRIBUTED;
  } catch (const c10::IndexError&) {
    return Failure::INDEX;
  } catch (const c10::ValueError&) {
    return Failure::VALUE;
  } catch (const c10::TypeError&) {
    return Failure::TYPE;
  } catch (const c10::NotImplementedError&) {
    return Failure::NOT_IMPLEMENTED;
  } catch (const c10::OutOfMemoryError&) {
    return Failure::MEMORY;
  } catch (...) {
    return Failure::RUNTIME;
  }
}

void follow(Session& session, const Plan& plan, uint64_t number, uint64_t entered_ns, c10d::Work* work) noexcept {
  if (work == nullptr) {
    session.tape.complete(number, entered_ns, now_ns(), layout::HOW_CALL, 0);
    return;
  }
  const Followed followed{number, entered_ns, plan.group, plan.kind, plan.is_left_alone, plan.is_synchronizing};
  const bool is_followed = session.works.put(work, followed, session.tape);
  if (!plan.has_callback) {
    if (!is_followed) {
      session.tape.complete(number, entered_ns, now_ns(), layout::HOW_ABANDONED, 0);
    }
    return;
  }
  retain(&session);
  try {
    work->getFuture()->addCallback(OnEnd(plan.group, number, plan.is_synchronizing), /*uses_future=*/false);
  } catch (...) {  // this Work has no future: only a wait shows its end
    release(&session);
    if (!is_followed) {
      session.tape.complete(number, entered_ns, now_ns(), layout::HOW_ABANDONED, 0);
    }
  }
}

void follow_memory(Session& session, const Plan& plan, uint64_t number, uint64_t entered_ns,
                   const void* memory) noexcept {
  const Followed followed{number, entered_ns, plan.group, plan.kind, plan.is_left_alone, plan.is_synchronizing};
  session.written.put(memory, followed, session.tape);
}

void wait_begins(Session& session, const Followed& followed) noexcept {
  if (followed.is_left_alone) {
    const auto elapsed_ns = static_cast<int64_t>(now_ns() - followed.entered_ns);
    session.tape.mark(followed.number, layout::WORD_WAIT_ENTERED, elapsed_ns, layout::HOW_CALL);
  }
}

void wait_ended(Session& session, const Followed& followed) noexcept {
  session.tape.complete(followed.number, followed.entered_ns, now_ns(), layout::HOW_WAIT, 0);
  if (followed.is_synchronizing) {
    followed.group->is_synchronized.store(true, std::memory_order_relaxed);
  }
}

}  // namespace otel_torchdist
