// `Work.wait` as a function in C.
#pragma once

#include "python.h"

namespace otel_torchdist {

// Makes the method that replaces `wait` in a class; `functions` are the one in Python and the original. Needs the GIL.
PyObject* make_wait(PyObject* functions);

// Sets the function in Python for waits that raise. Needs the GIL.
void call_on_failed_wait(PyObject* callable);

}  // namespace otel_torchdist
