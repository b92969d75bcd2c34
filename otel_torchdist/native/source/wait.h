// `Work.wait` as a function in C.
#pragma once

#include "python.h"

namespace otel_torchdist {

// Makes the method that replaces `wait` in a class; `functions` are the one in Python and the original. Needs the GIL.
PyObject* make_wait(PyObject* functions);

// The address of the Work in an instance of pybind11; null if it cannot be seen.
const void* work_of(PyObject* instance);

// Python's function for waits that raise, which must live as long as the process.
void call_on_failed_wait(PyObject* callable);

}  // namespace otel_torchdist
