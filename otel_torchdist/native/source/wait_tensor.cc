// The kernels of `_c10d_functional::wait_tensor` and `wait_tensors`, which name operations by their output's memory.
#include "completion.h"
#include "kernel.h"

namespace otel_torchdist {
namespace {

using c10::IValue;
using torch::jit::Stack;

// The operations that a call waits for.
class AwaitedOperations {
 public:
  explicit AwaitedOperations(Session& session) : session_(session) {}
  AwaitedOperations(const AwaitedOperations&) = delete;
  AwaitedOperations& operator=(const AwaitedOperations&) = delete;
  ~AwaitedOperations() {
    if (has_device_wait_) {  // the wait has raised
      devices_->wait_raised(wait_);
    }
  }

  // Finds the open operation that writes to a tensor. Returns false if an unknown operation may write to it. May throw.
  bool find(const IValue& tensor) {
    const void* memory = memory_of(tensor);
    FollowedOperation operation;
    if (memory == nullptr || !session_.written.find(memory, &operation, /*remove=*/true)) {
      return false;
    }
    if (!session_.tape.is_open(operation.number)) {
      return true;  // it is over
    }
    for (size_t index = 0; index < count_; ++index) {
      if (awaited_[index].number == operation.number) {
        return true;
      }
    }
    awaited_[count_++] = operation;
    return true;
  }

  void begin() noexcept {
    const FollowedOperation* last = last_on_device();
    has_device_wait_ =
        last != nullptr && last->devices->wait_begins(last->number, last->device_slot, last->device, &wait_);
    devices_ = last != nullptr ? last->devices : nullptr;
    for (size_t index = 0; index < count_; ++index) {
      if (awaited_[index].devices == nullptr) {
        wait_begins(session_, awaited_[index]);
      }
    }
  }

  void end() noexcept {
    if (has_device_wait_) {
      devices_->wait_ends(wait_);
      has_device_wait_ = false;
    }
    for (size_t index = 0; index < count_; ++index) {
      if (awaited_[index].devices == nullptr) {
        wait_ended(session_, awaited_[index]);
      }
    }
  }

 private:
  // The last operation on a device, if all are in one queue; otherwise null.
  const FollowedOperation* last_on_device() const noexcept {
    const FollowedOperation* last = nullptr;
    for (size_t index = 0; index < count_; ++index) {
      const FollowedOperation& operation = awaited_[index];
      if (operation.devices == nullptr) {
        continue;
      }
      if (last != nullptr && (operation.group != last->group || operation.device != last->device)) {
        return nullptr;
      }
      last = last == nullptr || operation.number > last->number ? &operation : last;
    }
    return last;
  }

  Session& session_;
  Devices* devices_ = nullptr;
  DeviceItem wait_;
  bool has_device_wait_ = false;
  size_t count_ = 0;
  FollowedOperation awaited_[MAX_TENSORS];
};

class WaitKernel final : public c10::OperatorKernel {
 public:
  explicit WaitKernel(bool is_for_several) : is_for_several_(is_for_several) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (is_traced(keys)) {
      leave_to_torch(op, keys, stack);
      return;
    }
    const SessionGuard guard;
    if (guard.session() == nullptr) {
      if (passes_on()) {
        op.redispatchBoxed(keys_after_ours(keys), stack);
        return;
      }
      leave_to_python(op, keys, stack);
      return;
    }
    AwaitedOperations awaited(*guard.session());
    bool are_all_known = false;
    try {
      are_all_known = find(awaited, stack->back());
    } catch (...) {  // Python handles unreadable tensors
    }
    awaited.begin();
    if (are_all_known) {
      op.redispatchBoxed(keys_after_ours(keys), stack);
    } else {
      leave_to_python(op, keys, stack);
    }
    awaited.end();
  }

 private:
  // Returns whether there is an operation for each tensor.
  bool find(AwaitedOperations& awaited, const IValue& argument) const {
    if (!is_for_several_) {
      return argument.isTensor() && awaited.find(argument);
    }
    if (!argument.isTensorList() || argument.toListRef().size() > MAX_TENSORS) {
      return false;
    }
    bool are_all_known = true;
    for (const IValue& tensor : argument.toListRef()) {
      are_all_known = awaited.find(tensor) && are_all_known;
    }
    return are_all_known;
  }

  const bool is_for_several_;
};

}  // namespace

c10::KernelFunction make_wait_kernel(bool is_for_several) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<WaitKernel>(is_for_several));
}

}  // namespace otel_torchdist
