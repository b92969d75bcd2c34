#include "kernel.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <unistd.h>

#include <functional>
#include <string>

#include "completion.h"

namespace otel_torchdist {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

constexpr DispatchKey OURS = DispatchKey::BackendSelect;        // precedes every backend
constexpr DispatchKey PYTHON = DispatchKey::TESTING_ONLY_GenericMode;  // nothing else has kernels there
constexpr uint64_t OVERHEAD_SAMPLE = 16;
constexpr size_t MOST_TENSORS = 64;  // of a list, like `MAX_SUMMED` in capture/c10d/signatures.py

DispatchKeySet behind_ours(DispatchKeySet keys) { return keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, OURS); }

// While a program is traced, Python chooses kernels, and tensors only pretend: nothing is recorded.
bool is_traced(DispatchKeySet keys) { return keys.has(DispatchKey::PythonDispatcher); }

void leave_to_torch(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys.remove(OURS), stack);
}

void leave_to_python(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(behind_ours(keys).add(PYTHON), stack);
}

uint64_t hash_of_label() {
#ifdef HAS_LABELS  // set by native/build.py where torch has them
  const std::string& label = c10d::get_comm_profiling_name();
  return label.empty() ? 0 : std::hash<std::string>()(label) | 1;
#else
  return 0;
#endif
}

bool add_tensor(Key& key, const at::TensorImpl* tensor) {
  if (tensor == c10::UndefinedTensorImpl::singleton() || tensor->has_symbolic_sizes_strides() || tensor->is_meta() || tensor->is_sparse() ||
      tensor->is_sparse_csr() || tensor->is_python_dispatch() || !tensor->is_cpu()) {
    return false;
  }
  const auto sizes = tensor->sizes();
  bool fits = key.add(static_cast<uint64_t>(tensor->dtype().toScalarType()) << 32 | sizes.size());
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
  for (size_t index = 0; fits && index < tensors.size() && index < MOST_TENSORS; ++index) {
    fits = add_tensor(key, tensors[index].unsafeToTensorImpl());
  }
  return fits;
}

void* object_in(const IValue& value) { return value.toObjectRef().getSlot(0).toCapsule().get(); }

// The Work in a result; null if there is none.
c10d::Work* work_in(const Stack& stack, int32_t place) {
  if (place < 0 || stack.empty() || !stack.back().isObject()) {
    return nullptr;
  }
  return static_cast<c10d::Work*>(object_in(stack.back()));
}

// Builds the key of a call; false if such calls are always left to Python.
bool make_key(ThreadState& thread, Session& session, const Operation& operation, const IValue* arguments,
              DispatchKeySet keys) {
  Key& key = thread.key;
  key.clear();
  const bool splits = (operation.input_splits >= 0 && !arguments[operation.input_splits].toIntVector().empty()) ||
                      (operation.output_splits >= 0 && !arguments[operation.output_splits].toIntVector().empty());
  if (splits) {
    return false;
  }
  const bool is_async = operation.async_op >= 0 && arguments[operation.async_op].toBool();
  const int64_t peer = operation.peer >= 0 ? arguments[operation.peer].toInt() : -1;
  const uint64_t reduce_op =
      operation.reduce_op < 0
          ? 0
          : 1 + static_cast<c10d::ReduceOp*>(object_in(arguments[operation.reduce_op]))->op_;
  bool fits = key.add(static_cast<uint64_t>(operation.index) << 32 | reduce_op << 1 | static_cast<uint64_t>(is_async)) &&
              key.add(reinterpret_cast<uint64_t>(object_in(arguments[operation.group]))) && key.add(keys.raw_repr()) &&
              key.add(static_cast<uint64_t>(peer)) && key.add(hash_of_label()) &&
              key.add(torch::autograd::get_current_graph_task_id() >= 0) &&
              add_tensors(key, arguments[operation.described]);
  bool is_known = true;
  const CallSite site = find_call_site(thread.codes, session.code_kinds, &is_known);
  return fits && is_known && key.add(site.code) && key.add(static_cast<uint64_t>(site.instruction));
}

// Drops what a thread knows if it is of another session, of plans that are void, or of the parent of a fork.
void refresh(ThreadState& thread, const Session& session) {
  const uint64_t generation = session.generation.load(std::memory_order_acquire);
  if (thread.session != &session || thread.generation != generation || thread.forks != forks()) {
    thread.plans.clear();
    thread.codes.clear();
    thread.session = &session;
    thread.generation = generation;
    thread.forks = forks();
  }
}

// Whether this call ends a step by the number of operations, which Python does.
bool begins_window(const Session& session, const Plan& plan) {
  if (!plan.group->is_default.load(std::memory_order_relaxed) || !session.counts_windows.load(std::memory_order_relaxed)) {
    return false;
  }
  const auto issued = static_cast<uint64_t>(plan.channel->sequence.load(std::memory_order_relaxed));
  return !plan.group->has_one_channel || issued % session.window == 0;
}

// Finds how a call is recorded; false if it is left to Python, which may then plan it. May throw.
bool find_plan(Session& session, const Operation& operation, const IValue* arguments, DispatchKeySet keys, Plan* plan) {
  ThreadState& thread = thread_state();
  refresh(thread, session);
  thread.is_pending = false;
  if (!make_key(thread, session, operation, arguments, keys)) {
    return false;
  }
  const uint64_t hash = thread.key.hash();
  const Plan* found = thread.plans.find(thread.key, hash);
  if (found == nullptr) {
    thread.is_pending = true;
    thread.pending_hash = hash;
    return false;
  }
  *plan = *found;
  return plan->group != nullptr && !plan->group->is_coalescing.load(std::memory_order_relaxed) &&
         !begins_window(session, *plan);
}

// Records that an operation was not issued, which frees its place in the order, or failed in the call itself.
void failed(Session& session, const Operation& operation, const Plan& plan, uint64_t number, uint64_t entered_ns) {
  if (operation.work >= 0) {
    plan.channel->sequence.fetch_sub(1, std::memory_order_relaxed);
  }
  const auto failure = static_cast<size_t>(failure_of(std::current_exception()));
  session.tape.complete(number, entered_ns, now_ns(), layout::HOW_FAILED, session.failures[failure].load());
}

void map_memory(Session& session, const Plan& plan, uint64_t number, uint64_t entered_ns, const void* const* memory,
                size_t count) {
  for (size_t index = 0; index < count; ++index) {
    follow_memory(session, plan, number, entered_ns, memory[index]);
  }
}

size_t add_memory(const IValue& tensor, const void** memory, size_t count) {
  const at::TensorImpl* impl = tensor.unsafeToTensorImpl();
  if (impl->has_storage() && impl->layout() == c10::kStrided) {
    memory[count++] = impl->data();
  }
  return count;
}

// Where an operation writes: its arguments are gone when it returns.
size_t memory_in(const IValue& output, const void** memory) {
  if (output.isTensor()) {
    return add_memory(output, memory, 0);
  }
  if (!output.isTensorList()) {
    return 0;
  }
  size_t count = 0;
  for (const IValue& tensor : output.toListRef()) {
    if (count == MOST_TENSORS) {
      break;
    }
    count = add_memory(tensor, memory, count);
  }
  return count;
}

// What Python records may have the addresses of a Work, and of memory, that are not in use any more.
void forget(Session& session, const c10d::Work* work, const void* const* memory, size_t count) {
  Followed forgotten;
  session.works.find(work, &forgotten, /*remove=*/true);
  for (size_t index = 0; index < count; ++index) {
    session.written.find(memory[index], &forgotten, /*remove=*/true);
  }
}

class CollectiveKernel final : public c10::OperatorKernel {
 public:
  CollectiveKernel(const Operation& operation, size_t arguments) : operation_(operation), arguments_(arguments) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_traced(keys)) {
      leave_to_torch(op, keys, stack);
      return;
    }
    const uint64_t entered_ns = now_ns();
    const Recording recording;
    Session* session = recording.session();
    Plan plan;
    const void* memory[MOST_TENSORS];
    size_t written = 0;
    if (session == nullptr || !prepare(*session, *stack, keys, &plan, memory, &written)) {
      written = session != nullptr ? find_memory(*stack, memory) : 0;
      leave_to_python(op, keys, stack);
      if (session != nullptr) {
        forget_result(*session, *stack, memory, written);
      }
      return;
    }
    const int64_t sequence = plan.channel->sequence.fetch_add(1, std::memory_order_relaxed) + 1;
    const int64_t step = session->step.load(std::memory_order_relaxed);
    const uint64_t number = session->tape.begin(entered_ns, step, static_cast<uint64_t>(sequence), plan.tail);
    const bool is_sampled = number % OVERHEAD_SAMPLE == 0;
    const uint64_t before_ns = is_sampled ? now_ns() - entered_ns : 0;
    try {
      op.redispatchBoxed(behind_ours(keys), stack);
    } catch (...) {
      failed(*session, operation_, plan, number, entered_ns);
      throw;
    }
    uint64_t returned_ns = 0;
    if (plan.is_left_alone || is_sampled) {
      returned_ns = now_ns();
    }
    if (plan.is_left_alone) {
      session->tape.mark(number, layout::WORD_RETURNED, static_cast<int64_t>(returned_ns - entered_ns), layout::HOW_CALL);
    }
    map_memory(*session, plan, number, entered_ns, memory, written);
    follow_result(*session, plan, number, entered_ns, *stack);
    if (is_sampled) {
      session->tape.add(layout::LIVE_OVERHEAD_NS, (before_ns + now_ns() - returned_ns) * OVERHEAD_SAMPLE);
      session->tape.add(layout::LIVE_OVERHEAD_CALLS, OVERHEAD_SAMPLE);
    }
  }

 private:
  // Our own errors stay with us: what cannot be read is left to Python.
  bool prepare(Session& session, const Stack& stack, DispatchKeySet keys, Plan* plan, const void** memory,
               size_t* written) const noexcept {
    try {
      const IValue* arguments = stack.data() + stack.size() - arguments_;
      if (!find_plan(session, operation_, arguments, keys, plan)) {
        return false;
      }
      *written = plan->maps_memory ? memory_in(arguments[0], memory) : 0;
      return true;
    } catch (...) {
      return false;
    }
  }

  size_t find_memory(const Stack& stack, const void** memory) const noexcept {
    try {
      return memory_in(*(stack.data() + stack.size() - arguments_), memory);
    } catch (...) {
      return 0;
    }
  }

  void forget_result(Session& session, const Stack& stack, const void* const* memory, size_t count) const noexcept {
    try {
      forget(session, work_in(stack, operation_.work), memory, count);
    } catch (...) {
    }
  }

  void follow_result(Session& session, const Plan& plan, uint64_t number, uint64_t entered_ns,
                     const Stack& stack) const noexcept {
    try {
      follow(session, plan, number, entered_ns, work_in(stack, operation_.work));
    } catch (...) {
      session.tape.complete(number, entered_ns, now_ns(), layout::HOW_ABANDONED, 0);
    }
  }

  const Operation operation_;
  const size_t arguments_;
};

class WaitKernel final : public c10::OperatorKernel {
 public:
  explicit WaitKernel(bool is_for_several) : is_for_several_(is_for_several) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_traced(keys)) {
      leave_to_torch(op, keys, stack);
      return;
    }
    const Recording recording;
    Session* session = recording.session();
    Followed found[MOST_TENSORS];
    size_t count = 0;
    bool are_all_known = false;
    try {
      are_all_known = session != nullptr && find(*session, stack->back(), found, &count);
    } catch (...) {  // what cannot be read is left to Python
    }
    for (size_t index = 0; index < count; ++index) {
      wait_begins(*session, found[index]);
    }
    if (are_all_known) {
      op.redispatchBoxed(behind_ours(keys), stack);
    } else {
      leave_to_python(op, keys, stack);
    }
    for (size_t index = 0; index < count; ++index) {
      wait_ended(*session, found[index]);
    }
  }

 private:
  // Finds the open operations that write to what is waited for; returns whether there is one for each tensor.
  bool find(Session& session, const IValue& waited, Followed* found, size_t* count) const {
    if (!is_for_several_) {
      return waited.isTensor() && find_one(session, waited, found, count);
    }
    if (!waited.isTensorList() || waited.toListRef().size() > MOST_TENSORS) {
      return false;
    }
    bool are_all_known = true;
    for (const IValue& tensor : waited.toListRef()) {
      are_all_known = find_one(session, tensor, found, count) && are_all_known;
    }
    return are_all_known;
  }

  static bool find_one(Session& session, const IValue& tensor, Followed* found, size_t* count) {
    const at::TensorImpl* impl = tensor.unsafeToTensorImpl();
    if (impl->is_meta() || !impl->is_cpu() || !impl->has_storage() || impl->has_symbolic_sizes_strides()) {
      return false;
    }
    Followed one;
    if (!session.written.find(impl->data(), &one, /*remove=*/true)) {
      return false;
    }
    if (!session.tape.is_open(one.number)) {
      return true;  // it is over, and nobody has to wait
    }
    for (size_t index = 0; index < *count; ++index) {
      if (found[index].number == one.number) {
        return true;
      }
    }
    found[(*count)++] = one;
    return true;
  }

  const bool is_for_several_;
};

std::vector<c10::RegistrationHandleRAII>& registered() {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  return *handles;
}

// A second reference to each kernel, for ever: a thread may be inside when its registration ends.
std::vector<c10::KernelFunction>& kept() {
  static auto* kernels = new std::vector<c10::KernelFunction>;
  return *kernels;
}

void put_in(const c10::OperatorName& name, c10::KernelFunction function) {
  kept().push_back(function);
  registered().push_back(c10::Dispatcher::singleton().registerImpl(name, OURS, std::move(function), std::nullopt, nullptr,
                                                                   "otel_torchdist"));
}

}  // namespace

uint64_t key_of_python_kernels() noexcept { return DispatchKeySet(PYTHON).raw_repr(); }

const char* name_of_python_key() noexcept { return c10::toString(PYTHON); }

bool register_collective(const char* name, const char* overload, const Operation& operation) {
  const c10::OperatorName full(name, overload);
  const auto handle = c10::Dispatcher::singleton().findSchema(full);
  if (!handle.has_value()) {
    return false;
  }
  const size_t arguments = handle->schema().arguments().size();
  put_in(full, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<CollectiveKernel>(operation, arguments)));
  return true;
}

bool register_wait(const char* name, bool is_for_several) {
  const c10::OperatorName full(name, "");
  if (!c10::Dispatcher::singleton().findSchema(full).has_value()) {
    return false;
  }
  put_in(full, c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<WaitKernel>(is_for_several)));
  return true;
}

void unregister_all() { registered().clear(); }

}  // namespace otel_torchdist
