// The functions that Python calls through ctypes. None of them throws.
#include <cstring>
#include <new>

#include "devices.h"
#include "kernel.h"
#include "plans.h"
#include "wait.h"

#include <torch/version.h>

using namespace otel_torchdist;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

Tail tail_of(const char* bytes) {
  Tail tail;
  std::memcpy(tail.words, bytes, sizeof(tail.words));
  return tail;
}

constexpr int ACCEPTED = 1;
constexpr int OTHERS_DROPPED = 2;
}  // namespace

// --- the library ---

EXPORT int otd_abi() { return layout::VERSION * 1000 + 6; }
EXPORT const char* otd_torch_version() { return TORCH_VERSION; }
EXPORT int otd_use_frames(int minor, const void* runtime) { return use_frames_of(minor, runtime) ? 1 : 0; }
EXPORT void otd_innermost_frame(uint64_t* code, int64_t* instruction) {
  const CallSite site = innermost_frame();
  *code = site.code;
  *instruction = site.instruction;
}

// --- a tape ---
// C code may fork without Python's knowledge. Such a child writes nothing to its parent's tape.

EXPORT void* otd_open(int file, uint64_t capacity) {
  auto* session = new (std::nothrow) Session(file, capacity);
  if (session != nullptr && !session->tape.is_mapped()) {
    delete session;
    return nullptr;
  }
  return session;
}
EXPORT void otd_begin(void* handle, uint64_t window, const uint32_t* failures) {
  auto* session = static_cast<Session*>(handle);
  session->window = window;
  for (size_t index = 0; index < FAILURES; ++index) {
    session->failures[index].store(failures[index]);
  }
  begin_session(session);
}
EXPORT void otd_end(void* handle) { end_session(static_cast<Session*>(handle)); }
EXPORT void otd_release(void* handle) {
  end_session(static_cast<Session*>(handle));
  release(static_cast<Session*>(handle));
}
// Whether calls without a session go on to torch, without Python.
EXPORT void otd_pass_on(int passes_on) { set_passes_on(passes_on != 0); }
EXPORT void otd_set_step(void* handle, int64_t step) { static_cast<Session*>(handle)->step.store(step); }
EXPORT void otd_stop_windows(void* handle) { static_cast<Session*>(handle)->counts_windows.store(false); }
EXPORT uint64_t otd_tape_begin(void* handle, uint64_t entered_ns, int64_t step, uint64_t sequence, const char* tail) {
  auto* session = static_cast<Session*>(handle);
  return session->is_of_parent() ? 0 : session->tape.begin(entered_ns, step, sequence, tail_of(tail));
}
EXPORT uint64_t otd_tape_append(void* handle, const char* payload) {
  auto* session = static_cast<Session*>(handle);
  if (session->is_of_parent()) {
    return 0;
  }
  uint64_t words[layout::PAYLOAD_WORDS];
  std::memcpy(words, payload, sizeof(words));
  return session->tape.append(words, nullptr);
}
EXPORT void otd_tape_mark(void* handle, uint64_t number, unsigned which, int64_t elapsed_ns, unsigned how) {
  auto* session = static_cast<Session*>(handle);
  if (!session->is_of_parent()) {
    session->tape.mark(number, which, elapsed_ns, how);
  }
}
EXPORT void otd_tape_clear(void* handle, uint64_t number, unsigned which) {
  auto* session = static_cast<Session*>(handle);
  if (!session->is_of_parent()) {
    session->tape.clear(number, which);
  }
}
EXPORT int otd_tape_complete(void* handle, uint64_t number, uint64_t entered_ns, uint64_t ended_ns, unsigned how,
                             uint32_t failure) {
  auto* session = static_cast<Session*>(handle);
  return !session->is_of_parent() && session->tape.complete(number, entered_ns, ended_ns, how, failure) ? 1 : 0;
}
EXPORT uint64_t otd_tape_find_record_entered_at(void* handle, uint64_t entered_ns) {
  return static_cast<Session*>(handle)->tape.find_record_entered_at(entered_ns);
}
EXPORT uint64_t otd_tape_open(void* handle, uint64_t* numbers, uint64_t size) {
  return static_cast<Session*>(handle)->tape.open_numbers(numbers, size);
}
EXPORT void otd_tape_add(void* handle, unsigned live_word, uint64_t value) {
  auto* session = static_cast<Session*>(handle);
  if (!session->is_of_parent()) {
    session->tape.add(live_word, value);
  }
}

// --- groups and plans ---

EXPORT void* otd_add_group(void* handle, int has_one_channel) {
  Group* group = static_cast<Session*>(handle)->add_group();
  group->has_one_channel = has_one_channel != 0;
  return group;
}
EXPORT void otd_set_default(void* group) { static_cast<Group*>(group)->is_default.store(true); }
EXPORT void otd_set_coalescing(void* group, int is_coalescing) {
  static_cast<Group*>(group)->is_coalescing.store(is_coalescing != 0);
}
EXPORT int otd_is_synchronized(void* group) { return static_cast<Group*>(group)->is_synchronized.load() ? 1 : 0; }
EXPORT int64_t* otd_add_counter(void* handle) {
  static_assert(sizeof(Counter) == sizeof(int64_t));
  return reinterpret_cast<int64_t*>(static_cast<Session*>(handle)->add_counter());
}
// Returns the address of the calling thread's label, valid for the lifetime of the thread.
EXPORT uint32_t* otd_label_word() { return &thread_state().label; }
EXPORT int64_t* otd_next_bucket(void* group) {
  return reinterpret_cast<int64_t*>(&static_cast<Group*>(group)->next_bucket);
}
EXPORT void otd_set_buckets(void* group, uint32_t label, const uint64_t* sizes, uint64_t count) {
  try {
    static_cast<Group*>(group)->set_buckets(label, sizes, count);
  } catch (const std::bad_alloc&) {
    static_cast<Group*>(group)->buckets.store(nullptr);
  }
}
EXPORT void otd_learn_code(void* handle, uint64_t code, int kind) {
  static_cast<Session*>(handle)->code_kinds.learn(code, static_cast<CodeKind>(kind));
}
EXPORT void otd_forget_code(void* handle) {
  static_cast<Session*>(handle)->code_kinds.forget();
  static_cast<Session*>(handle)->generation.fetch_add(1);
}
EXPORT void otd_void_plans(void* handle) { static_cast<Session*>(handle)->generation.fetch_add(1); }

// Sets the plan for calls like this thread's last call that Python recorded. Without a group, Python records them.
EXPORT int otd_plan(void* handle, void* group, int64_t* counter, void* devices, const char* tail, uint32_t kind,
                    uint32_t flags, uint32_t ragged_factor) {
  ThreadState& thread = thread_state();
  if (!thread.is_pending || thread.session != handle ||
      thread.generation != static_cast<Session*>(handle)->generation.load()) {
    return 0;
  }
  thread.is_pending = false;
  const Plan plan{tail_of(tail),
                  static_cast<Group*>(group),
                  reinterpret_cast<Counter*>(counter),
                  static_cast<Devices*>(devices),
                  kind,
                  flags,
                  ragged_factor};
  if (plan.is(RAGGED) && !thread.has_ragged) {
    return 0;
  }
  const Key& key = plan.is(RAGGED) ? thread.ragged : thread.key;
  try {
    return thread.plans.put(key, key.hash(), plan) ? ACCEPTED : OTHERS_DROPPED;
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

// --- devices ---

EXPORT void* otd_stream_of_torch(void* get_current_stream, void* get_handle) {
  return reinterpret_cast<void*>(stream_of_torch(get_current_stream, get_handle));
}
// Never freed: an operation may be in flight until the process ends.
EXPORT void* otd_devices(const CudaFunctions* functions, uint32_t max_events) {
  try {
    return new Devices(*functions, max_events);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
EXPORT uint64_t otd_devices_take(void* devices, DeviceItem* items, uint64_t size) {
  return static_cast<Devices*>(devices)->take(items, size);
}
EXPORT uint32_t otd_devices_state(void* devices, uint32_t slot) { return static_cast<Devices*>(devices)->state(slot); }
EXPORT void otd_devices_release(void* devices, uint32_t slot) { static_cast<Devices*>(devices)->release(slot); }
EXPORT void otd_devices_give_back(void* devices, int device, void* event) {
  static_cast<Devices*>(devices)->give_back(device, event);
}
EXPORT uint64_t otd_devices_drain(void* devices, void** events, uint64_t size) {
  return static_cast<Devices*>(devices)->drain(events, size);
}
EXPORT int otd_devices_failure(void* devices) { return static_cast<Devices*>(devices)->failure(); }
EXPORT void otd_devices_stop(void* devices) { static_cast<Devices*>(devices)->stop(); }
EXPORT void otd_devices_sleep(void* devices, int64_t timeout_ns) { static_cast<Devices*>(devices)->sleep(timeout_ns); }
EXPORT void otd_devices_wake(void* devices) { static_cast<Devices*>(devices)->wake(); }

// --- kernels and waits ---

EXPORT uint64_t otd_python_key() { return key_of_python_kernels(); }
EXPORT const char* otd_python_key_name() { return name_of_python_key(); }
EXPORT int otd_register(const char* name, const char* overload, const Operation* operation) {
  try {
    return register_collective(name, overload, *operation) ? 1 : 0;
  } catch (...) {
    return 0;
  }
}
EXPORT int otd_register_wait(const char* name, int is_for_several) {
  try {
    return register_wait(name, is_for_several != 0) ? 1 : 0;
  } catch (...) {
    return 0;
  }
}
EXPORT void otd_unregister() { unregister_all(); }
EXPORT PyObject* otd_make_wait(PyObject* functions) { return make_wait(functions); }
EXPORT void otd_call_on_failed_wait(PyObject* callable) { call_on_failed_wait(callable); }
