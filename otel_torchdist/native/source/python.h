// The functions of CPython that the library calls. Their ABI is the same in all versions since 3.10, unlike CPython's
// headers. So one library serves all Python versions with the same torch.
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
// Null in 3.10, where it is an inline function without a symbol.
__attribute__((weak)) PyObject* PyObject_Vectorcall(PyObject* callable, PyObject* const* args, size_t count,
                                                    PyObject* names);
PyObject* PyObject_Call(PyObject* callable, PyObject* positional, PyObject* keywords);
PyObject* PyObject_CallFunction(PyObject* callable, const char* format, ...);
PyObject* PyCFunction_NewEx(PyMethodDef* definition, PyObject* self, PyObject* module);
PyObject* PyInstanceMethod_New(PyObject* function);
PyObject* PyTuple_New(ssize_t size);
PyObject* PyTuple_GetItem(PyObject* tuple, ssize_t index);
int PyTuple_SetItem(PyObject* tuple, ssize_t index, PyObject* given);  // steals the reference
ssize_t PyTuple_Size(PyObject* tuple);
PyObject* PyDict_New(void);
int PyDict_SetItem(PyObject* dict, PyObject* key, PyObject* value);
void PyErr_Fetch(PyObject** type, PyObject** value, PyObject** trace);
void PyErr_NormalizeException(PyObject** type, PyObject** value, PyObject** trace);
void PyErr_Restore(PyObject* type, PyObject* value, PyObject* trace);
void PyErr_Clear(void);
void Py_IncRef(PyObject* object);
void Py_DecRef(PyObject* object);
}
