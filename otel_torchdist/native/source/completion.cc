#include "completion.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <array>
#include <cstring>

#include "arguments.h"
#include "watched_work.h"

namespace otel_torchdist {
namespace {

// Callback of a future. Gloo calls it on its thread just before the operation counts as complete, or at once if the
// operation is over. It is trivially copyable and has 16 bytes, so it needs no allocation.
class OnEnd {
 public:
  OnEnd(Group* group, uint64_t number, bool is_synchronizing) noexcept
      : group_(group), number_(number << 1 | static_cast<uint64_t>(is_synchronizing)) {}

  void operator()(c10::ivalue::Future& future) const noexcept {
    const uint64_t ended_ns = now_ns();
    Session& session = *group_->session;
    const uint64_t number = number_ >> 1;
    if (future.hasError()) {
      session.tape.complete_at(number, ended_ns, layout::HOW_FAILED, failure_word(session, future.exception_ptr()));
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
    return Failure::RUNTIME;  // no exception: at exit, Python unwinds its threads
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

namespace {

constexpr std::array TIMEOUT = {"Timed out", "timed out", "timeout", "failed to pass monitoredBarrier"};
constexpr std::array REFUSED = {"onnection refused"};
constexpr std::array CONNECTION = {"Connection closed", "onnection reset", "Broken pipe", "Socket closed",
                                   "remote process exited"};

template <size_t SIZE>
bool has_any(const char* message, const std::array<const char*, SIZE>& parts) noexcept {
  return std::any_of(parts.begin(), parts.end(),
                     [message](const char* part) { return std::strstr(message, part) != nullptr; });
}

unsigned blame_in(const char* message) noexcept {
  if (has_any(message, REFUSED)) {
    return layout::BLAME_CONNECTION;
  }
  if (has_any(message, TIMEOUT)) {
    return layout::BLAME_TIMEOUT;
  }
  return has_any(message, CONNECTION) ? layout::BLAME_CONNECTION : layout::BLAME_UNKNOWN;
}

unsigned blame_of(const std::exception_ptr& error) noexcept {
  if (error == nullptr) {
    return layout::BLAME_UNKNOWN;
  }
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& torch_error) {
    return blame_in(torch_error.what_without_backtrace());
  } catch (const std::exception& exception) {
    return blame_in(exception.what());
  } catch (...) {
    return layout::BLAME_UNKNOWN;
  }
}

}  // namespace

uint32_t failure_word(const Session& session, const std::exception_ptr& error) noexcept {
  const auto failure = static_cast<size_t>(failure_of(error));
  return session.failures[failure].load() | blame_of(error) << layout::BLAME_SHIFT;
}

namespace {

FollowedOperation followed_of(const Issued& issued) noexcept {
  const Plan& plan = issued.plan;
  return {issued.number, issued.entered_ns, plan.group,        plan.devices,
          plan.kind,     plan.flags,        issued.item.slot, issued.item.device};
}

void map_memory(const Issued& issued, const void* const* memory, size_t count) noexcept {
  for (size_t index = 0; index < count; ++index) {
    issued.session.written.put(memory[index], followed_of(issued), issued.session.tape);
  }
}

void end(const Issued& issued, unsigned how) noexcept {
  issued.session.tape.complete(issued.number, issued.entered_ns, now_ns(), how, 0);
}

// Returns false if the Work has no future, so that only a wait shows its end.
bool add_callback(const Issued& issued, c10d::Work& work) noexcept {
  retain(&issued.session);
  try {
    work.getFuture()->addCallback(OnEnd(issued.plan.group, issued.number, issued.plan.is(SYNCHRONIZING)),
                                  /*uses_future=*/false);
    return true;
  } catch (...) {
    release(&issued.session);
    return false;
  }
}

c10d::Work* watch(const Issued& issued, c10::IValue* boxed) {
  auto watched = c10::make_intrusive<WatchedWork>(boxed->toCustomClass<c10d::Work>(), issued.session, issued.number);
  c10d::Work* work = watched.get();
  *boxed = c10::IValue(c10::intrusive_ptr<c10d::Work>(std::move(watched)));
  return work;
}

void follow_on_host(const Issued& issued, c10::IValue* boxed, const void* const* memory, size_t count) {
  c10d::Work* work = work_in(boxed);
  if (work == nullptr) {
    end(issued, layout::HOW_CALL);
    return;
  }
  map_memory(issued, memory, count);  // before its end can be recorded
  if (issued.plan.is(WATCHED)) {
    work = watch(issued, boxed);
  }
  bool has_end = issued.session.works.put(work, followed_of(issued), issued.session.tape);
  has_end = (issued.plan.is(CALLBACK) && add_callback(issued, *work)) || has_end;
  if (!has_end) {
    end(issued, layout::HOW_ABANDONED);
  }
}

void follow_on_device(const Issued& issued, c10::IValue* boxed, const void* const* memory, size_t count) {
  c10d::Work* work = issued.plan.is(WORK_IGNORED) ? nullptr : work_in(boxed);
  if (!issued.plan.devices->issued(issued.item, work)) {
    issued.session.tape.mark(issued.number, layout::WORD_STARTED, 0, layout::HOW_UNTRACKED);
    end(issued, layout::HOW_UNTRACKED);
    return;
  }
  if (work != nullptr) {
    map_memory(issued, memory, count);
    issued.session.works.put(work, followed_of(issued), issued.session.tape);
  }
}

}  // namespace

void follow(const Issued& issued, c10::IValue* work, const void* const* memory, size_t count) noexcept {
  try {
    if (issued.plan.devices == nullptr) {
      follow_on_host(issued, work, memory, count);
    } else {
      follow_on_device(issued, work, memory, count);
    }
  } catch (...) {  // the program must not see our errors
    end(issued, layout::HOW_ABANDONED);
  }
}

void wait_begins(Session& session, const FollowedOperation& followed) noexcept {
  if ((followed.flags & BACKGROUND) != 0) {
    const auto elapsed_ns = static_cast<int64_t>(now_ns() - followed.entered_ns);
    session.tape.mark(followed.number, layout::WORD_WAIT_ENTERED, elapsed_ns, layout::HOW_CALL);
  }
}

void wait_ended(Session& session, const FollowedOperation& followed) noexcept {
  session.tape.complete(followed.number, followed.entered_ns, now_ns(), layout::HOW_WAIT, 0);
  if ((followed.flags & SYNCHRONIZING) != 0) {
    followed.group->is_synchronized.store(true, std::memory_order_relaxed);
  }
}

}  // namespace otel_torchdist
