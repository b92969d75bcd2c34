// How the end of an operation is recorded: by its Work's future, or by the wait for it.
#pragma once

#include <exception>

#include "plans.h"

namespace c10d {
class Work;
}

namespace otel_torchdist {

// The name that Python would give to an exception of C++.
Failure failure_of(const std::exception_ptr& error) noexcept;

// Records the end of an operation that the backend has accepted; `work` is null if it is over already.
void follow(Session& session, const Plan& plan, uint64_t number, uint64_t entered_ns, c10d::Work* work) noexcept;

// The same for memory that a caller of `wait_tensor` may name.
void follow_memory(Session& session, const Plan& plan, uint64_t number, uint64_t entered_ns, const void* memory) noexcept;

// Records that a thread is about to wait; and that the wait has returned.
void wait_begins(Session& session, const Followed& followed) noexcept;
void wait_ended(Session& session, const Followed& followed) noexcept;

}  // namespace otel_torchdist
