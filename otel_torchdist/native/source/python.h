// The few functions of CPython that the library calls. They are the same in all versions since 3.10, which its headers
// are not; so one library serves every Python that has the same torch.
#pragma once

#include <sys/types.h>

extern "C" {

struct _object;
typedef struct _object PyObject;
typedef PyObject* (*PyCFunctionFast)(PyObject*, PyObject* const*, ssize_t, PyObject*);

struct PyMethodDef {
  const char* ml_name;
  PyCFunctionFast ml_meth;
  int ml_flags;
  const char* ml_doc;
};

void* PyGILState_GetThisThreadState(void);
PyObject* PyObject_VectorcallDict(PyObject* callable, PyObject* const* args, size_t count, PyObject* keywords);
PyObject* PyObject_CallFunction(PyObject* callable, const char* format, ...);
PyObject* PyCFunction_NewEx(PyMethodDef* definition, PyObject* self, PyObject* module);
PyObject* PyInstanceMethod_New(PyObject* function);
PyObject* PyTuple_GetItem(PyObject* tuple, ssize_t index);
ssize_t PyTuple_Size(PyObject* tuple);
PyObject* PyDict_New(void);
int PyDict_SetItem(PyObject* dict, PyObject* key, PyObject* value);
void PyErr_Fetch(PyObject** type, PyObject** value, PyObject** trace);
void PyErr_NormalizeException(PyObject** type, PyObject** value, PyObject** trace);
void PyErr_Restore(PyObject* type, PyObject* value, PyObject* trace);
void PyErr_Clear(void);
void Py_DecRef(PyObject* object);
}

namespace otel_torchdist {

// As CPython's own, which in 3.10 is an inline function of its headers.
inline PyObject* PyObject_Vectorcall(PyObject* callable, PyObject* const* args, size_t count, PyObject* names) {
  if (names == nullptr) {
    return PyObject_VectorcallDict(callable, args, count, nullptr);
  }
  PyObject* keywords = PyDict_New();
  PyObject* result = nullptr;
  if (keywords != nullptr) {
    bool is_filled = true;
    for (ssize_t i = 0; is_filled && i < PyTuple_Size(names); ++i) {
      is_filled = PyDict_SetItem(keywords, PyTuple_GetItem(names, i), args[count + static_cast<size_t>(i)]) == 0;
    }
    result = is_filled ? PyObject_VectorcallDict(callable, args, count, keywords) : nullptr;
    Py_DecRef(keywords);
  }
  return result;
}

}  // namespace otel_torchdist
