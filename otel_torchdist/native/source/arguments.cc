#include "arguments.h"

#include <c10/core/UndefinedTensorImpl.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <functional>
#include <string>

namespace otel_torchdist {
namespace {

using c10::IValue;

uint64_t hash_of_label() {
#ifdef HAS_LABELS  // set by native/build.py if torch has labels
  const std::string& label = c10d::get_comm_profiling_name();
  return label.empty() ? 0 : std::hash<std::string>()(label) | 1;
#else
  return 0;
#endif
}

bool is_readable(const at::TensorImpl* tensor) {
  return tensor != c10::UndefinedTensorImpl::singleton() && !tensor->has_symbolic_sizes_strides() &&
         !tensor->is_meta() && !tensor->is_sparse() && !tensor->is_sparse_csr() && !tensor->is_python_dispatch() &&
         (tensor->is_cpu() || tensor->is_cuda());
}

bool add_tensor(Key& key, const at::TensorImpl* tensor) {
  if (!is_readable(tensor)) {
    return false;
  }
  const auto sizes = tensor->sizes();
  const uint64_t kind = static_cast<uint64_t>(tensor->dtype().toScalarType()) << 1 | tensor->is_cuda();
  bool fits = key.add(kind << 32 | sizes.size());
  for (const int64_t size : sizes) {
    fits = fits && key.add(static_cast<uint64_t>(size));
  }
  return fits;
}

bool add_tensors(Key& key, const IValue& described) {
  if (described.isTensor()) {
    return add_tensor(key, described.unsafeToTensorImpl());
  }
  if (!described.isTensorList()) {
    return false;
  }
  const auto tensors = described.toListRef();
  bool fits = key.add(tensors.size() << 8 | 1);
  for (size_t index = 0; fits && index < tensors.size() && index < MAX_TENSORS; ++index) {
    fits = add_tensor(key, tensors[index].unsafeToTensorImpl());
  }
  return fits;
}

void* object_in(const IValue& value) { return value.toObjectRef().getSlot(0).toCapsule().get(); }

size_t add_memory(const IValue& tensor, const void** memory, size_t count) {
  const at::TensorImpl* impl = tensor.unsafeToTensorImpl();
  if (impl->has_storage() && impl->layout() == c10::kStrided) {
    memory[count++] = impl->data();
  }
  return count;
}

bool has_splits(const Operation& operation, const IValue* arguments) {
  return (operation.input_splits >= 0 && !arguments[operation.input_splits].toIntVector().empty()) ||
         (operation.output_splits >= 0 && !arguments[operation.output_splits].toIntVector().empty());
}

// Returns whether the outputs of an all_gather differ in size from its input, like `gathers_alike` in plans.py.
bool gathers_unlike(const Operation& operation, const IValue* arguments) {
  if (operation.gathered < 0) {
    return false;
  }
  const auto inputs = arguments[operation.described].toListRef();
  const auto outputs = arguments[operation.gathered].toListRef();
  if (inputs.size() != 1 || outputs.size() != 1) {
    return true;
  }
  const auto parts = outputs[0].toListRef();
  const int64_t input_size = inputs[0].unsafeToTensorImpl()->numel();
  return parts.size() <= MAX_TENSORS && std::any_of(parts.begin(), parts.end(), [input_size](const IValue& part) {
           return part.unsafeToTensorImpl()->numel() != input_size;
         });
}

int64_t integer_argument(const IValue* arguments, int32_t index) { return index >= 0 ? arguments[index].toInt() : -1; }

}  // namespace

bool make_key(ThreadState& thread, Session& session, const Operation& operation, const IValue* arguments,
              c10::DispatchKeySet keys) {
  Key& key = thread.key;
  key.clear();
  if (has_splits(operation, arguments) || gathers_unlike(operation, arguments)) {
    return false;
  }
  const bool is_async = operation.async_op >= 0 && arguments[operation.async_op].toBool();
  const uint64_t reduce_op =
      operation.reduce_op < 0
          ? 0
          : 1 + static_cast<c10d::ReduceOp*>(object_in(arguments[operation.reduce_op]))->op_;
  bool fits = key.add(static_cast<uint64_t>(operation.index) << 32 | reduce_op << 1 | static_cast<uint64_t>(is_async)) &&
              key.add(reinterpret_cast<uint64_t>(object_in(arguments[operation.group]))) && key.add(keys.raw_repr()) &&
              key.add(static_cast<uint64_t>(integer_argument(arguments, operation.peer))) &&
              key.add(static_cast<uint64_t>(integer_argument(arguments, operation.tag))) && key.add(hash_of_label()) &&
              key.add(torch::autograd::get_current_graph_task_id() >= 0);
  bool is_known = true;
  const CallSite site = find_call_site(thread.codes, session.code_kinds, &is_known);
  fits = fits && is_known && key.add(site.code) && key.add(static_cast<uint64_t>(site.instruction)) &&
         key.add(site.path_hash);
  thread.words_before_shapes = key.size();
  return fits && add_tensors(key, arguments[operation.described]);
}

bool make_ragged_key(ThreadState& thread, const IValue& described) {
  const bool is_list = described.isTensorList();
  const auto tensors = is_list ? described.toListRef() : c10::ArrayRef<IValue>(described);
  if (tensors.empty()) {
    return false;
  }
  const auto type = tensors[0].unsafeToTensorImpl()->dtype();
  for (size_t index = 1; index < tensors.size() && index < MAX_TENSORS; ++index) {
    if (tensors[index].unsafeToTensorImpl()->dtype() != type) {
      return false;
    }
  }
  thread.ragged.copy(thread.key, thread.words_before_shapes);
  return thread.ragged.add(~uint64_t{0}) && thread.ragged.add(static_cast<uint64_t>(type.toScalarType())) &&
         thread.ragged.add(tensors.size() << 1 | static_cast<uint64_t>(is_list));
}

uint64_t bytes_in(const IValue& described) {
  if (described.isTensor()) {
    const at::TensorImpl* tensor = described.unsafeToTensorImpl();
    return static_cast<uint64_t>(tensor->numel()) * tensor->itemsize();
  }
  uint64_t bytes = 0;
  const auto tensors = described.toListRef();
  for (size_t index = 0; index < tensors.size() && index < MAX_TENSORS; ++index) {
    const at::TensorImpl* tensor = tensors[index].unsafeToTensorImpl();
    bytes += static_cast<uint64_t>(tensor->numel()) * tensor->itemsize();
  }
  return bytes;
}

size_t memory_in(const IValue& output, const void** memory) {
  if (output.isTensor()) {
    return add_memory(output, memory, 0);
  }
  if (!output.isTensorList()) {
    return 0;
  }
  size_t count = 0;
  for (const IValue& tensor : output.toListRef()) {
    if (count == MAX_TENSORS) {
      break;
    }
    count = add_memory(tensor, memory, count);
  }
  return count;
}

int device_in(const IValue& described) {
  const IValue* tensor = described.isTensor() ? &described : described.toListRef().data();
  return tensor->unsafeToTensorImpl()->device().index();
}

const void* memory_of(const IValue& tensor) {
  const at::TensorImpl* impl = tensor.unsafeToTensorImpl();
  return is_readable(impl) && impl->has_storage() ? impl->data() : nullptr;
}

c10d::Work* work_in(const IValue* boxed) {
  return boxed != nullptr && boxed->isObject() ? static_cast<c10d::Work*>(object_in(*boxed)) : nullptr;
}

}  // namespace otel_torchdist
