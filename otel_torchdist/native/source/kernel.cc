#include "kernel.h"

#include "completion.h"

namespace otel_torchdist {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using torch::jit::Stack;

constexpr uint64_t OVERHEAD_SAMPLE = 16;

// Drops a thread's state if it is from another session, from an earlier generation of plans, or from before a fork.
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

// Returns whether this call begins a new window, which ends a step. Python ends steps.
bool begins_window(const Session& session, const Plan& plan) {
  if (plan.is(MESSAGE) || !plan.group->is_default.load(std::memory_order_relaxed) ||
      !session.counts_windows.load(std::memory_order_relaxed)) {
    return false;
  }
  const auto issued = static_cast<uint64_t>(plan.counter->sequence.load(std::memory_order_relaxed));
  return !plan.group->has_one_channel || issued % session.window == 0;
}

// Finds the plan of a call. Returns false if Python records it, and perhaps plans it. May throw.
bool find_plan(Session& session, const Operation& operation, const IValue* arguments, DispatchKeySet keys, Plan* plan) {
  ThreadState& thread = thread_state();
  refresh(thread, session);
  thread.is_pending = false;
  if (!make_key(thread, session, operation, arguments, keys)) {
    return false;
  }
  const Plan* found = thread.plans.find(thread.key, thread.key.hash());
  if (found == nullptr) {
    thread.has_ragged = make_ragged_key(thread, arguments[operation.described]);
    found = thread.has_ragged ? thread.plans.find(thread.ragged, thread.ragged.hash()) : nullptr;
  }
  if (found == nullptr) {
    thread.is_pending = true;
    return false;
  }
  *plan = *found;
  if (plan->is(RAGGED)) {
    plan->tail.words[0] = bytes_in(arguments[operation.described]) * plan->ragged_factor;
  }
  return plan->group != nullptr && !plan->group->is_coalescing.load(std::memory_order_relaxed) &&
         !begins_window(session, *plan);
}

// A call that is being recorded.
class RecordedCall {
 public:
  RecordedCall(const Operation& operation, uint64_t entered_ns) : operation_(operation), entered_ns_(entered_ns) {}

  // Returns false if Python records the call, also after one of our errors.
  bool prepare(Session& session, const IValue* arguments, DispatchKeySet keys) noexcept {
    try {
      if (!find_plan(session, operation_, arguments, keys, &plan_)) {
        return false;
      }
      memory_count_ = plan_.is(MAPS_MEMORY) ? memory_in(arguments[0], memory_) : 0;
      return plan_.devices == nullptr ||
             plan_.devices->prepare(device_in(arguments[operation_.described]), plan_.is(ELSEWHERE), &item_);
    } catch (...) {
      return false;
    }
  }

  void enter(Session& session) noexcept {
    put_label(plan_, thread_state());
    const int64_t sequence = plan_.counter->sequence.fetch_add(1, std::memory_order_relaxed) + 1;
    const int64_t step = session.step.load(std::memory_order_relaxed);
    number_ = session.tape.begin(entered_ns_, step, static_cast<uint64_t>(sequence), plan_.tail);
    if (plan_.devices != nullptr) {
      item_.number = number_;
      item_.entered_ns = entered_ns_;
      item_.session = &session;
      item_.kind = plan_.kind;
      item_.peer = peer_in(plan_.tail);
      item_.is_timed = is_timed(static_cast<uint64_t>(sequence)) ? 1 : 0;
      plan_.devices->entered(item_);
    }
    before_ns_ = number_ % OVERHEAD_SAMPLE == 0 ? now_ns() - entered_ns_ : 0;
  }

  void leave(Session& session, Stack* stack) noexcept {
    const uint64_t returned_ns = plan_.is(BACKGROUND) || before_ns_ != 0 ? now_ns() : 0;
    if (plan_.is(BACKGROUND)) {
      session.tape.mark(number_, layout::WORD_RETURNED, static_cast<int64_t>(returned_ns - entered_ns_), layout::HOW_CALL);
    }
    IValue* work = operation_.work >= 0 && !stack->empty() ? &stack->back() : nullptr;
    follow({session, plan_, number_, entered_ns_, item_}, work, memory_, memory_count_);
    if (before_ns_ != 0) {
      session.tape.add(layout::LIVE_OVERHEAD_NS, (before_ns_ + now_ns() - returned_ns) * OVERHEAD_SAMPLE);
      session.tape.add(layout::LIVE_OVERHEAD_CALLS, OVERHEAD_SAMPLE);
    }
  }

  // Records that the operation was not issued, so that its sequence number is reused, or that it failed in the call.
  void fail(Session& session) noexcept {
    if (operation_.work >= 0) {
      plan_.counter->sequence.fetch_sub(1, std::memory_order_relaxed);
    }
    if (plan_.devices != nullptr) {
      plan_.devices->refused(item_);
    }
    const uint32_t failure = failure_word(session, std::current_exception());
    session.tape.complete(number_, entered_ns_, now_ns(), layout::HOW_FAILED, failure);
  }

  // Stores the addresses of the output of a call that Python records: the arguments are gone when it returns.
  void find_memory(const IValue& output) noexcept {
    try {
      memory_count_ = memory_in(output, memory_);
    } catch (...) {  // unreadable memory
      memory_count_ = 0;
    }
  }

  // Removes earlier entries for the addresses of the call's Work and output, which may have been reused.
  void forget(Session& session, const Stack& stack) noexcept {
    FollowedOperation forgotten;
    try {
      session.works.find(operation_.work >= 0 && !stack.empty() ? work_in(&stack.back()) : nullptr, &forgotten,
                         /*remove=*/true);
    } catch (...) {  // no readable Work
    }
    for (size_t index = 0; index < memory_count_; ++index) {
      session.written.find(memory_[index], &forgotten, /*remove=*/true);
    }
  }

 private:
  static int32_t peer_in(const Tail& tail) noexcept {
    layout::Payload payload;
    __builtin_memcpy(reinterpret_cast<char*>(&payload) + layout::HEAD_WORDS * sizeof(uint64_t), tail.words,
                     sizeof(tail.words));
    return payload.peer;
  }

  const Operation& operation_;
  const uint64_t entered_ns_;
  Plan plan_{};
  DeviceItem item_{};
  uint64_t number_ = 0;
  uint64_t before_ns_ = 0;  // time of our code before the call, if measured
  size_t memory_count_ = 0;
  const void* memory_[MAX_TENSORS];
};

// Lets Python record a call. Python may run other calls on this thread meanwhile, such as a collective in a signal
// handler. Afterwards, it cannot plan this thread's last call.
void have_python_record(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  struct AtEnd {
    ~AtEnd() { thread_state().is_pending = false; }
  } const at_end;
  leave_to_python(op, keys, stack);
}

class CollectiveKernel final : public c10::OperatorKernel {
 public:
  CollectiveKernel(const Operation& operation, size_t arguments) : operation_(operation), arguments_(arguments) {}

  void operator()(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    if (is_traced(keys)) {
      leave_to_torch(op, keys, stack);
      return;
    }
    RecordedCall call(operation_, now_ns());
    const SessionGuard guard;
    Session* session = guard.session();
    if (session == nullptr) {
      if (passes_on()) {
        op.redispatchBoxed(keys_after_ours(keys), stack);
        return;
      }
      leave_to_python(op, keys, stack);
      return;
    }
    if (!call.prepare(*session, stack->data() + stack->size() - arguments_, keys)) {
      call.find_memory(*(stack->data() + stack->size() - arguments_));
      have_python_record(op, keys, stack);
      call.forget(*session, *stack);
      return;
    }
    call.enter(*session);
    try {
      op.redispatchBoxed(keys_after_ours(keys), stack);
    } catch (...) {
      call.fail(*session);
      throw;
    }
    call.leave(*session, stack);
  }

 private:
  const Operation operation_;
  const size_t arguments_;
};

std::vector<c10::RegistrationHandleRAII>& registered() {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  return *handles;
}

// Keeps each kernel forever: a thread may be inside when its registration ends.
std::vector<c10::KernelFunction>& all_kernels() {
  static auto* kernels = new std::vector<c10::KernelFunction>;
  return *kernels;
}

void register_kernel(const c10::OperatorName& name, c10::KernelFunction function) {
  all_kernels().push_back(function);
  registered().push_back(c10::Dispatcher::singleton().registerImpl(name, OUR_KEY, std::move(function), std::nullopt,
                                                                   nullptr, "otel_torchdist"));
}

}  // namespace

bool is_traced(DispatchKeySet keys) { return keys.has(DispatchKey::PythonDispatcher); }

DispatchKeySet keys_after_ours(DispatchKeySet keys) {
  return keys & DispatchKeySet(DispatchKeySet::FULL_AFTER, OUR_KEY);
}

void leave_to_torch(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys.remove(OUR_KEY), stack);
}

void leave_to_python(const c10::OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  op.redispatchBoxed(keys_after_ours(keys).add(PYTHON_KEY), stack);
}

uint64_t key_of_python_kernels() noexcept { return DispatchKeySet(PYTHON_KEY).raw_repr(); }

const char* name_of_python_key() noexcept { return c10::toString(PYTHON_KEY); }

bool register_collective(const char* name, const char* overload, const Operation& operation) {
  const c10::OperatorName operator_name(name, overload);
  const auto handle = c10::Dispatcher::singleton().findSchema(operator_name);
  if (!handle.has_value()) {
    return false;
  }
  const size_t arguments = handle->schema().arguments().size();
  register_kernel(operator_name, c10::KernelFunction::makeFromBoxedFunctor(
                                     std::make_unique<CollectiveKernel>(operation, arguments)));
  return true;
}

bool register_wait(const char* name, bool is_for_several) {
  const c10::OperatorName operator_name(name, "");
  if (!c10::Dispatcher::singleton().findSchema(operator_name).has_value()) {
    return false;
  }
  register_kernel(operator_name, make_wait_kernel(is_for_several));
  return true;
}

void unregister_all() { registered().clear(); }

}  // namespace otel_torchdist
