// The kernels of `_c10d_functional::wait_tensor` and `wait_tensors`, which name operations by their output's memory.
#include "completion.h"
#include "kernel.h"

namespace otel_torchdist {
namespace {

using c10::IValue;
using torch::jit::Stack;

// The operations that a call waits for.
class Waited {
 public:
  explicit Waited(Session& session) : session_(session) {}

  // Finds the open operation that writes to a tensor. Returns false if an unknown operation may write to it. May throw.
  bool find(const IValue& tensor) {
    const void* memory = memory_of(tensor);
    Followed one;
    if (memory == nullptr || !session_.written.find(memory, &one, /*remove=*/true)) {
      return false;
    }
    if (!session_.tape.is_open(one.number)) {
      return true;  // it is over
    }
    for (size_t index = 0; index < count_; ++index) {
      if (found_[index].number == one.number) {
        return true;
      }
    }
    found_[count_++] = one;
    return true;
  }

  void begin() noexcept {
    const Followed* last = last_on_device();
    has_device_wait_ = last != nullptr && last->devices->wait_begins(last->number, last->place, last->device, &wait_);
    devices_ = last != nullptr ? last->devices : nullptr;
    for (size_t index = 0; index < count_; ++index) {
      if (found_[index].devices == nullptr) {
        wait_begins(session_, found_[index]);
      }
    }
  }

  void end() noexcept {
    if (has_device_wait_) {
      devices_->wait_ends(wait_);
    }
    for (size_t index = 0; index < count_; ++index) {
      if (found_[index].devices == nullptr) {
        wait_ended(session_, found_[index]);
      }
    }
  }

 private:
  // The last operation on a device, if all are in one queue; otherwise null.
  const Followed* last_on_device() const noexcept {
    const Followed* last = nullptr;
    for (size_t index = 0; index < count_; ++index) {
      const Followed& one = found_[index];
      if (one.devices == nullptr) {
        continue;
      }
      if (last != nullptr && (one.group != last->group || one.device != last->device)) {
        return nullptr;
      }
      last = last == nullptr || one.number > last->number ? &one : last;
    }
    return last;
  }

  Session& session_;
  Devices* devices_ = nullptr;
  DeviceItem wait_;
  bool has_device_wait_ = false;
  size_t count_ = 0;
  Followed found_[MOST_TENSORS];
};

class WaitKernel final : public c10::OperatorKernel {
 public:
  explicit WaitKernel(bool is_for_several) : is_for_several_(is_for_several) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    if (is_traced(keys)) {
      leave_to_torch(op, keys, stack);
      return;
    }
    const Recording recording;
    if (recording.session() == nullptr) {
      leave_to_python(op, keys, stack);
      return;
    }
    Waited waited(*recording.session());
    bool are_all_known = false;
    try {
      are_all_known = find(waited, stack->back());
    } catch (...) {  // Python handles unreadable tensors
    }
    waited.begin();
    if (are_all_known) {
      op.redispatchBoxed(behind_ours(keys), stack);
    } else {
      leave_to_python(op, keys, stack);
    }
    waited.end();
  }

 private:
  // Returns whether there is an operation for each tensor.
  bool find(Waited& waited, const IValue& argument) const {
    if (!is_for_several_) {
      return argument.isTensor() && waited.find(argument);
    }
    if (!argument.isTensorList() || argument.toListRef().size() > MOST_TENSORS) {
      return false;
    }
    bool are_all_known = true;
    for (const IValue& tensor : argument.toListRef()) {
      are_all_known = waited.find(tensor) && are_all_known;
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
