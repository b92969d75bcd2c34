"""Standard error in a form in which two runs can be compared."""

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
"""torch's loggers write the end of a line separately, so that lines of two processes may be joined."""

_LEAK_REPORT = re.compile(r"^(?:nanobind: | - leaked | - \.\.\. skipped|See https://nanobind\b).*\n?", re.MULTILINE)


def without_leak_report(text: str) -> str:
    """Remove what triton's bindings report as leaked at the end of an interpreter that froze its objects.

    The warm interpreter does that, so that its children do not clean up what they share; a user's program would not.
    """
    return _LEAK_REPORT.sub("", text)


def comparable(text: str) -> list[str]:
    """The lines, sorted, because processes write concurrently; without times, ports, addresses and process ids."""
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    text = _BEGINS_A_LINE.sub("\n", text)
    return sorted(line for line in text.splitlines() if line)
