// Records the ends of operations, as shown by the Work's future, by a wait, or by the device.
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
  const DeviceItem& item;  // empty for an operation on the CPU
};

// Returns Python's name of a C++ exception.
Failure failure_of(const std::exception_ptr& error) noexcept;

// Returns the word of a failure on the tape: its name, and the blamed cause. See capture/core/failures.py.
uint32_t failure_word(const Session& session, const std::exception_ptr& error) noexcept;

// Records the end of an operation that the backend has accepted, now or once its future, a wait or the device shows it.
//
// Args:
//   work: The operation's Work, or null. It may be replaced by a Work that delegates to it.
//   memory: Addresses of the output, if a wait may name them.
void follow(const Issued& issued, c10::IValue* work, const void* const* memory, size_t count) noexcept;

// Record that a thread is about to wait, and that the wait has returned.
void wait_begins(Session& session, const FollowedOperation& followed) noexcept;
void wait_ended(Session& session, const FollowedOperation& followed) noexcept;

}  // namespace otel_torchdist
