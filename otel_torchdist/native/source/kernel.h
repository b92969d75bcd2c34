// The kernels in torch's dispatcher. What Python has planned is recorded here, without the GIL; all else goes to the
// kernels in Python, which are registered for another key of the same operations.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>

#include "arguments.h"

namespace otel_torchdist {

constexpr c10::DispatchKey OURS = c10::DispatchKey::BackendSelect;           // precedes every backend
constexpr c10::DispatchKey PYTHONS = c10::DispatchKey::TESTING_ONLY_GenericMode;  // nothing else has kernels there

// While a program is traced, Python chooses kernels, and tensors only pretend: nothing is recorded.
bool is_traced(c10::DispatchKeySet keys);

// The key set with which the backend is called.
c10::DispatchKeySet behind_ours(c10::DispatchKeySet keys);
void leave_to_torch(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
void leave_to_python(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// The bit of the dispatch key for which the kernels in Python are registered.
uint64_t key_of_python_kernels() noexcept;
const char* name_of_python_key() noexcept;

// Registers the kernel of an operation; false if torch refuses.
bool register_collective(const char* name, const char* overload, const Operation& operation);
// Registers the kernel of `wait_tensor`, or of `wait_tensors`.
bool register_wait(const char* name, bool is_for_several);
void unregister_all();

// In wait_tensor.cc.
c10::KernelFunction make_wait_kernel(bool is_for_several);

}  // namespace otel_torchdist
