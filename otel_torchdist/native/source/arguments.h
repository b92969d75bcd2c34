// Reads an operation's arguments and result from the dispatcher's stack.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>

#include "plans.h"

namespace c10d {
class Work;
}

namespace otel_torchdist {

constexpr size_t MAX_TENSORS = 64;  // in a list; `MAX_SUMMED` in capture/core/calls/signatures.py

// The positions of an operation's arguments, which Python reads from its schema; -1 for missing arguments.
struct Operation {
  int32_t index;      // the operation's number, part of the key of its plans
  int32_t group;
  int32_t described;  // the tensors whose types and shapes are recorded
  int32_t reduce_op;
  int32_t peer;
  int32_t tag;
  int32_t async_op;
  int32_t input_splits;
  int32_t output_splits;
  int32_t gathered;  // the output of an all_gather, a list of lists
  int32_t work;  // the position of the Work in the result
};

// Writes the key of a call into `thread.key`. Returns false if Python always records such calls. May throw.
bool make_key(ThreadState& thread, Session& session, const Operation& operation, const c10::IValue* arguments,
              c10::DispatchKeySet keys);

// Writes the key of the last call, without its shapes, into `thread.ragged`. Returns false if its tensors have several
// types.
bool make_ragged_key(ThreadState& thread, const c10::IValue& described);

// Returns the bytes of the tensors of an argument, at most `MAX_TENSORS` of a list.
uint64_t bytes_in(const c10::IValue& described);

// Writes the addresses of the output's tensors, at most `MAX_TENSORS`: the arguments are gone after the operation.
size_t memory_in(const c10::IValue& output, const void** memory);

// Returns the device of an argument's first tensor.
int device_in(const c10::IValue& described);

// Returns the address of a tensor's memory, or null if it cannot be read.
const void* memory_of(const c10::IValue& tensor);

// Returns the Work in a value, or null.
c10d::Work* work_in(const c10::IValue* boxed);

}  // namespace otel_torchdist
