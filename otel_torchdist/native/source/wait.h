// `Work.wait` as a C function.
#pragma once

#include "python.h"

namespace otel_torchdist {

// Makes the method that replaces `wait` in a class. `functions`: the Python replacement, the original. Needs the GIL.
PyObject* make_wait(PyObject* functions);

// Sets the Python function for waits that raise. Needs the GIL.
void call_on_failed_wait(PyObject* callable);

}  // namespace otel_torchdist
