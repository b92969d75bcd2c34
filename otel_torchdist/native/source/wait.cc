// `Work.wait` as a C function. Works that are not followed here go to the Python function.
#include "wait.h"

#include <initializer_list>

#include "completion.h"

namespace otel_torchdist {
namespace {

constexpr int METH_FASTCALL_WITH_NAMES = 0x0080 | 0x0002;

// Layout of pybind11's instances: a head of two words, then the object's address. The byte with the flags follows the
// holder and the list of weak references.
constexpr int VALUE_OFFSET = 16;
constexpr int FLAGS_OFFSET = 48;
constexpr uint8_t IS_SIMPLE = 2;
// Offsets of an object's type, and of the instance size in a type.
constexpr int TYPE_OFFSET = 8;
constexpr int INSTANCE_SIZE_OFFSET = 32;

PyObject* on_failure = nullptr;  // the Python function for a wait that raised

template <typename T>
T field(const void* object, int offset) {
  T value;
  __builtin_memcpy(&value, static_cast<const char*>(object) + offset, sizeof(value));
  return value;
}

// Returns the Work of an instance, or null for another object or layout.
const void* work_of(PyObject* instance) {
  const auto* type = field<const void*>(instance, TYPE_OFFSET);
  if (field<ssize_t>(type, INSTANCE_SIZE_OFFSET) <= FLAGS_OFFSET ||
      (field<uint8_t>(instance, FLAGS_OFFSET) & IS_SIMPLE) == 0) {
    return nullptr;
  }
  return field<const void*>(instance, VALUE_OFFSET);
}

// Returns the keyword arguments of a call, which follow the others, or null with an error set.
PyObject* keywords_in(PyObject* const* arguments, ssize_t count, PyObject* names) {
  PyObject* keywords = PyDict_New();
  for (ssize_t index = 0; keywords != nullptr && names != nullptr && index < PyTuple_Size(names); ++index) {
    if (PyDict_SetItem(keywords, PyTuple_GetItem(names, index), arguments[count + index]) != 0) {
      Py_DecRef(keywords);
      keywords = nullptr;
    }
  }
  return keywords;
}

PyObject* call(PyObject* callable, PyObject* const* arguments, ssize_t count, PyObject* names) {
  if (PyObject_Vectorcall != nullptr) {
    return PyObject_Vectorcall(callable, arguments, static_cast<size_t>(count), names);
  }
  PyObject* positional = PyTuple_New(count);
  PyObject* keywords = positional != nullptr ? keywords_in(arguments, count, names) : nullptr;
  PyObject* result = nullptr;
  if (keywords != nullptr) {
    for (ssize_t index = 0; index < count; ++index) {
      Py_IncRef(arguments[index]);
      PyTuple_SetItem(positional, index, arguments[index]);
    }
    result = PyObject_Call(callable, positional, keywords);
  }
  for (PyObject* object : {positional, keywords}) {
    if (object != nullptr) {
      Py_DecRef(object);
    }
  }
  return result;
}

// Reports a wait that raised to Python, which determines whether the operation failed or the wait timed out.
void report_failure(PyObject* work, const FollowedOperation& followed) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject* answer =
      PyObject_CallFunction(on_failure, "OKKIO", work, static_cast<unsigned long long>(followed.number),
                            static_cast<unsigned long long>(followed.entered_ns), followed.kind, value);
  if (answer == nullptr) {
    PyErr_Clear();
  } else {
    Py_DecRef(answer);
  }
  PyErr_Restore(type, value, trace);
}

// On a device, `wait` only makes the stream wait. When the stream continues, the operation is over.
PyObject* wait_on_device(const FollowedOperation& followed, PyObject* original, PyObject* const* arguments,
                         ssize_t count, PyObject* names) {
  DeviceItem wait;
  const bool is_followed = followed.devices->wait_begins(followed.number, followed.device_slot, followed.device, &wait);
  PyObject* result = call(original, arguments, count, names);
  if (is_followed && result != nullptr) {
    followed.devices->wait_ends(wait);
  } else if (is_followed) {
    followed.devices->wait_raised(wait);  // the stream may go on although the operation runs
  }
  return result;
}

// `self` holds the Python function and the original.
PyObject* wait(PyObject* self, PyObject* const* arguments, ssize_t count, PyObject* names) {
  PyObject* original = PyTuple_GetItem(self, 1);
  FollowedOperation followed;
  const SessionGuard guard;
  Session* session = guard.session();
  const void* work = count > 0 ? work_of(arguments[0]) : nullptr;
  if (session == nullptr || work == nullptr || !session->works.find(work, &followed, /*remove=*/true)) {
    return call(PyTuple_GetItem(self, 0), arguments, count, names);
  }
  if (!session->tape.is_open(followed.number)) {
    return call(original, arguments, count, names);
  }
  if (followed.devices != nullptr) {
    return wait_on_device(followed, original, arguments, count, names);
  }
  wait_begins(*session, followed);
  PyObject* result = call(original, arguments, count, names);
  if (result != nullptr) {
    wait_ended(*session, followed);
  } else {
    report_failure(arguments[0], followed);
  }
  return result;
}

PyMethodDef definition = {"wait", wait, METH_FASTCALL_WITH_NAMES, "Wait until the operation is over."};

}  // namespace

PyObject* make_wait(PyObject* functions) {
  PyObject* function = PyCFunction_NewEx(&definition, functions, nullptr);
  if (function == nullptr) {
    return nullptr;
  }
  PyObject* method = PyInstanceMethod_New(function);  // as in pybind11, and as Dynamo expects
  Py_DecRef(function);
  return method;
}

void call_on_failed_wait(PyObject* callable) {
  PyObject* previous = on_failure;
  Py_IncRef(callable);  // a thread may still be in a wait when its session has ended
  on_failure = callable;
  Py_DecRef(previous);
}

}  // namespace otel_torchdist
