// How the end of an operation is recorded: by its Work's future, by the wait for it, or by its device.
#pragma once

#include <ATen/core/ivalue.h>

#include <exception>

#include "devices.h"
#include "plans.h"

namespace otel_torchdist {

// An operation between its call and its end.
struct Issued {
  Session& session;
  const Plan& plan;
  uint64_t number;
  uint64_t entered_ns;
  const DeviceItem& item;  // on a device
};

// The name that Python would give to an exception of C++.
Failure failure_of(const std::exception_ptr& error) noexcept;

// The word of a failure on the tape: that name, and what its message blames. As in capture/core/failures.py.
uint32_t failure_word(const Session& session, const std::exception_ptr& error) noexcept;

// Records the end of an operation that the backend has accepted.
//
// Args:
//   work: The operation's Work, or nothing if it has none. It may be replaced by one that passes everything on.
//   memory: What the operation writes to, if a wait may name that.
void follow(const Issued& issued, c10::IValue* work, const void* const* memory, size_t count) noexcept;

// Records that a thread is about to wait; and that the wait has returned.
void wait_begins(Session& session, const Followed& followed) noexcept;
void wait_ended(Session& session, const Followed& followed) noexcept;

}  // namespace otel_torchdist
