"""Standard error as two runs can compare it."""

import re

_VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]?\d*"), "<time>"),
    (re.compile(r"[EIW]\d{4} \d\d:\d\d:\d\d\.\d+ (\d+ )?"), "<time> "),
    (re.compile(r"0x[0-9a-f]+"), "<address>"),
    (re.compile(r"\b\d+:\d+ (?=\w+\.cpp:)"), "<pids> "),
    (re.compile(r":\d{4,5}\b"), ":<port>"),
    (re.compile(r"\bpid:? \d+"), "pid <pid>"),
    (re.compile(r"\[\d\d:\d\d<\d\d:\d\d, [\d.?]+(it/s|s/it)\]"), "[<progress>]"),
)
_BEGINS_A_LINE = re.compile(r"(?=(?:ERROR|USDT|WARNING|INFO):<time>|\[rank\d+\]:\[<time>)")
"""torch's loggers write a line's end separately, so that lines of two processes may come as one."""

_LEAK_REPORT = re.compile(r"^(?:nanobind: | - leaked | - \.\.\. skipped|See https://nanobind\b).*\n?", re.MULTILINE)


def without_leak_report(text: str) -> str:
    """Leave out what triton's bindings report as leaked at the end of an interpreter that froze its objects.

    The warm interpreter does, so that its children do not tidy up what they share; no program of a user's would.
    """
    return _LEAK_REPORT.sub("", text)


def comparable(text: str) -> list[str]:
    """The lines, sorted, for processes write as they come; without times, ports, addresses and process ids."""
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    text = _BEGINS_A_LINE.sub("\n", text)
    return sorted(line for line in text.splitlines() if line)
