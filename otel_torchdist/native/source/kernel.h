// The kernels in torch's dispatcher. They record calls with a plan, without the GIL. Other calls go to the Python
// kernels, which are registered for another dispatch key of the same operations.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>

#include "arguments.h"

namespace otel_torchdist {

constexpr c10::DispatchKey OUR_KEY = c10::DispatchKey::BackendSelect;                // precedes every backend
constexpr c10::DispatchKey PYTHON_KEY = c10::DispatchKey::TESTING_ONLY_GenericMode;  // nothing else has kernels there

// Returns whether a program is being traced. Then Python chooses kernels, tensors are fake, and nothing is recorded.
bool is_traced(c10::DispatchKeySet keys);

// Returns the keys that remain after ours, with which the backend is called.
c10::DispatchKeySet keys_after_ours(c10::DispatchKeySet keys);
void leave_to_torch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
void leave_to_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Returns the bit of the Python kernels' dispatch key.
uint64_t key_of_python_kernels() noexcept;
const char* name_of_python_key() noexcept;

// Registers the kernel of an operation. Returns false if torch rejects it.
bool register_collective(const char* name, const char* overload, const Operation& operation);
// Registers the kernel of `wait_tensor`, or of `wait_tensors`.
bool register_wait(const char* name, bool is_for_several);
void unregister_all();

// In wait_tensor.cc.
c10::KernelFunction make_wait_kernel(bool is_for_several);

}  // namespace otel_torchdist
