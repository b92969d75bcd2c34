// The kernels in torch's dispatcher. What Python has planned is recorded here, without the GIL; all else goes to the
// kernels in Python, which are registered for another key of the same operations.
#pragma once

#include <cstdint>

namespace otel_torchdist {

// Where the arguments of an operation are, as read from its schema by Python; -1 for what it does not have.
struct Operation {
  int32_t index;
  int32_t group;
  int32_t described;
  int32_t reduce_op;
  int32_t peer;
  int32_t async_op;
  int32_t input_splits;
  int32_t output_splits;
  int32_t work;  // the place of the Work in the result
};

// The bit of the dispatch key for which the kernels in Python are registered.
uint64_t key_of_python_kernels() noexcept;
const char* name_of_python_key() noexcept;

// Registers the kernel of an operation; false if torch refuses.
bool register_collective(const char* name, const char* overload, const Operation& operation);
// Registers the kernel of `wait_tensor`, or of `wait_tensors`.
bool register_wait(const char* name, bool is_for_several);
void unregister_all();

}  // namespace otel_torchdist
