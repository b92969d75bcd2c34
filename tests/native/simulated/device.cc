// Tensors that claim to be on a CUDA device, and operations on them that ask Python what happens: so that the dispatcher,
// the kernels and all behind them are torch's and ours, on machines without a device.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <cstdlib>
#include <map>
#include <mutex>

struct _object;
typedef struct _object PyObject;
PyObject* THPVariable_Wrap(const at::TensorBase& tensor);  // libtorch_python's

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Answer { REFUSED = 0, WITHOUT_WORK = 1, WITH_WORK = 2 };
using Issue = int (*)(const char* operation, int is_async, uint64_t id);
using Wait = int (*)(uint64_t id);

Issue issue = nullptr;
Wait wait_for = nullptr;
uint64_t last_id = 0;
std::mutex lock;
std::map<const void*, uint64_t> writers;
std::map<uint64_t, c10::intrusive_ptr<c10::ivalue::Future>> results;

class SimulatedWork final : public c10d::Work {
 public:
  SimulatedWork(uint64_t id, c10::intrusive_ptr<c10::ivalue::Future> result) : id_(id), result_(std::move(result)) {}
  bool wait(std::chrono::milliseconds) override {
    TORCH_CHECK(wait_for(id_) != 0, "the simulated wait raises");
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return result_; }

 private:
  const uint64_t id_;
  const c10::intrusive_ptr<c10::ivalue::Future> result_;
};

const void* memory_of(const c10::IValue& value) {
  const c10::IValue& tensor = value.isTensorList() ? value.toListRef()[0] : value;
  return tensor.unsafeToTensorImpl()->data();
}

struct Operation final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const size_t count = schema.arguments().size();
    const c10::IValue first = (*stack)[stack->size() - count];
    const int flag = schema.argumentIndexWithName("async_op").value_or(-1);
    const bool is_async = flag >= 0 && (*stack)[stack->size() - count + flag].toBool();
    const uint64_t id = ++last_id;
    auto result = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    {  // before it is issued: the watchdog may report it from then on
      const std::lock_guard<std::mutex> guard(lock);
      results[id] = result;
    }
    const int answer = issue(schema.name().c_str(), is_async, id);
    TORCH_CHECK(answer != REFUSED, "the simulated backend refuses");
    c10::intrusive_ptr<c10d::Work> work;
    if (answer == WITH_WORK) {
      const std::lock_guard<std::mutex> guard(lock);
      writers[memory_of(first)] = id;
      work = c10::make_intrusive<SimulatedWork>(id, std::move(result));
    }
    torch::jit::drop(*stack, count);
    for (const auto& value : schema.returns()) {
      if (value.type()->kind() == c10::TypeKind::ClassType) {
        stack->emplace_back(work);
      } else {
        stack->push_back(first);
      }
    }
  }
};

struct WaitTensor final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    uint64_t id = 0;
    {
      const std::lock_guard<std::mutex> guard(lock);
      id = writers.at(memory_of(stack->back()));
    }
    TORCH_CHECK(wait_for(id) != 0, "the simulated wait raises");
  }
};

std::vector<c10::RegistrationHandleRAII>& registered() {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  return *handles;
}

template <typename Kernel>
void put_in(const char* name) {
  registered().push_back(c10::Dispatcher::singleton().registerImpl(
      c10::OperatorName(name, ""), c10::DispatchKey::CUDA,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Kernel>()), std::nullopt, nullptr, "simulated"));
}

// --- computing -----------------------------------------------------------------------------------------------------
// Any other operation on such tensors is one of the CPU's on the same memory. Those for which a host would have to wait
// for its device are refused: whatever reads an element, has a shape that depends on values, or copies between the two.

at::Tensor on(const at::Tensor& tensor, c10::Device place) {
  auto* kept = new c10::Storage(tensor.storage());
  c10::Storage storage(c10::Storage::use_byte_size_t(), kept->nbytes(),
                       c10::DataPtr(kept->mutable_data(), kept, [](void* of) { delete static_cast<c10::Storage*>(of); },
                                    place),
                       c10::GetAllocator(c10::DeviceType::CPU), place.is_cpu());
  const auto key = place.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  auto result =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  result.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  return result;
}

bool waits_for_device(const std::string& name) {
  for (const char* one : {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "bincount", "unique",
                          "histc", "index.Tensor", "_copy_from"}) {
    if (name.rfind(std::string("aten::") + one, 0) == 0) {
      return name != "aten::nonzero_static";
    }
  }
  return false;
}

struct OnHost final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const size_t count = schema.arguments().size();
    TORCH_CHECK(!waits_for_device(schema.name()), schema.name(), " waits for the device");
    std::vector<std::pair<at::Tensor, at::Tensor>> moved;
    c10::DeviceIndex index = 0;
    bool has_host = false;
    const auto moved_to_host = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !tensor.device().is_cuda()) {
        has_host = has_host || (tensor.defined() && !tensor.unsafeGetTensorImpl()->is_wrapped_number());
        return tensor;
      }
      index = tensor.device().index();
      moved.emplace_back(tensor, on(tensor, c10::Device(c10::DeviceType::CPU)));
      return moved.back().second;
    };
    for (size_t at = stack->size() - count; at < stack->size(); ++at) {
      auto& value = (*stack)[at];
      if (value.isTensor()) {
        value = moved_to_host(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor tensor : value.toTensorList()) {
          list.push_back(moved_to_host(tensor));
        }
        value = list;
      } else if (value.isDevice() && value.toDevice().is_cuda()) {
        index = value.toDevice().index() < 0 ? 0 : value.toDevice().index();
        value = c10::Device(c10::DeviceType::CPU);
      }
    }
    TORCH_CHECK(!has_host, schema.name(), " copies between host and device, and waits for it");
    op.callBoxed(stack);
    for (const auto& [device, host] : moved) {  // an output may have become larger
      if (host.sizes() != device.sizes()) {
        device.unsafeGetTensorImpl()->set_storage_keep_dtype(on(host, device.device()).storage());
        device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
      }
    }
    for (size_t at = stack->size() - schema.returns().size(); at < stack->size(); ++at) {
      auto& value = (*stack)[at];
      TORCH_CHECK(value.isTensor(), schema.name(), " returns what is no tensor, which would have to be awaited");
      const auto result = value.toTensor();
      value = on(result, c10::Device(c10::DeviceType::CUDA, index));
      for (const auto& [device, host] : moved) {
        if (host.is_same(result)) {
          value = device;
        }
      }
    }
  }
};

at::Tensor on_device(const at::Tensor& host, int64_t device) {
  return on(host, c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
}

at::Tensor on_host(const at::Tensor& device) { return on(device, c10::Device(c10::DeviceType::CPU)); }

}  // namespace

TORCH_LIBRARY(simulated, m) {
  m.def("on_device(Tensor host, int device) -> Tensor", on_device);
  m.def("on_host(Tensor device) -> Tensor", on_host);
}

// From now on, an operation on tensors on a device is computed, whether or not this torch has kernels of its own for it.
EXPORT void sim_compute(const char* name, const char* overload) {
  registered().push_back(c10::Dispatcher::singleton().registerImpl(
      c10::OperatorName(name, overload), c10::DispatchKey::CUDA,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<OnHost>()), std::nullopt, nullptr, "simulated"));
}

EXPORT void sim_begin(Issue issued, Wait waited) {
  issue = issued;
  wait_for = waited;
  for (const char* name : {"c10d::allreduce_", "c10d::_allgather_base_", "c10d::send", "c10d::recv_"}) {
    put_in<Operation>(name);
  }
  put_in<WaitTensor>("_c10d_functional::wait_tensor");
}

// What PyTorch's watchdog reports of an operation: its `WorkResult`, or that it has failed itself.
EXPORT void sim_watchdog(uint64_t id, int result) {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard<std::mutex> guard(lock);
    future = results.at(id);
  }
  if (result >= 0) {
    future->markCompleted(c10::IValue(result));
  } else {
    future->setError(std::make_exception_ptr(std::runtime_error("the watchdog has failed")));
  }
}

EXPORT PyObject* sim_tensor(int device, int64_t elements) {
  const c10::Device place(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
  const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
  void* memory = std::calloc(1, bytes);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(memory, memory, &std::free, place), nullptr,
                       false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                         caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({elements});
  return THPVariable_Wrap(tensor);
}
