// What the kernels read from an operation's arguments and result, on the dispatcher's stack.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>

#include "plans.h"

namespace c10d {
class Work;
}

namespace otel_torchdist {

constexpr size_t MOST_TENSORS = 64;  // of a list, like `MAX_SUMMED` in capture/core/calls/signatures.py

// Where the arguments of an operation are, as read from its schema by Python; -1 for what it does not have.
struct Operation {
  int32_t index;
  int32_t group;
  int32_t described;
  int32_t reduce_op;
  int32_t peer;
  int32_t tag;
  int32_t async_op;
  int32_t input_splits;
  int32_t output_splits;
  int32_t gathered;  // the list of lists that an all_gather writes to
  int32_t work;  // the place of the Work in the result
};

// Writes the key of a call; false if such calls are always left to Python. May throw.
bool make_key(ThreadState& thread, Session& session, const Operation& operation, const c10::IValue* arguments,
              c10::DispatchKeySet keys);

// Writes the key of all calls that differ from the last one in their shapes only; false if there are several types.
bool make_ragged_key(ThreadState& thread, const c10::IValue& described);

// Bytes of the tensors of an argument, of a list at most `MOST_TENSORS`.
uint64_t bytes_in(const c10::IValue& described);

// Where the first argument writes to, at most `MOST_TENSORS` places: the arguments are gone when the operation returns.
size_t memory_in(const c10::IValue& output, const void** memory);

// The device of the first tensor of an argument.
int device_in(const c10::IValue& described);

// The memory of a tensor that may be waited for; null if it cannot be read.
const void* memory_of(const c10::IValue& tensor);

// The Work in a value; null if there is none.
c10d::Work* work_in(const c10::IValue* boxed);

}  // namespace otel_torchdist
