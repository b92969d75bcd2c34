"""Sets a condition of the Kubernetes node that a verdict blames. Whether it is drained then is its operators' choice.

    OTEL_PYTHON_TORCHDIST_ON_MACHINE="command:python3 /opt/otel-torchdist/actions/kubernetes_node.py --act"

In a pod it uses the pod's service account, which needs the rights in kubernetes-rbac.yaml. `--clear NODE` ends the
condition after the node has been repaired.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import os
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

from advice import (
    ActionError,
    Advice,
    UnknownOutcomeError,
    add_limits,
    check_at_once,
    in_one_line,
    parser_of,
    run_adapter,
    take_slot,
)

FAULT: Final = "TorchdistMachineFault"
"""Evidence of the machine shows the fault (`drain`)."""
SUSPECTED: Final = "TorchdistMachineSuspected"
"""Two incidents, without evidence of the machine (`exclude`)."""
MAX_MESSAGE: Final = 500
TIMEOUT_S: Final = 15.0
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def main() -> int:
    """Set or clear the condition, or say what would be done."""
    parser = parser_of(__doc__ or "")
    add_limits(parser)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else ""
    parser.add_argument("--server", default=server, metavar="URL", help="the API server (default: the pod's)")
    parser.add_argument("--token-file", type=Path, default=_ACCOUNT / "token", metavar="FILE")
    parser.add_argument("--ca-file", type=Path, default=_ACCOUNT / "ca.crt", metavar="FILE")
    parser.add_argument("--clear", metavar="NODE", help="end the conditions of a repaired node; reads no verdict")
    arguments = parser.parse_args()
    if arguments.clear:
        try:
            print(clear(arguments.clear, arguments))
        except ActionError as error:
            print(error)
            return 1
        return 0
    return run_adapter(lambda advice: act(advice, arguments))


def act(advice: Advice, arguments: argparse.Namespace) -> str:
    """Set the condition of each node; return what was done.

    Raises:
        ActionError: The limits or the API server refuse.
    """
    if advice.action not in ("drain", "exclude"):
        return f"nothing to do: {advice.reason}"
    check_at_once(advice, arguments.at_once)
    kubernetes = Kubernetes(arguments.server, arguments.token_file, arguments.ca_file)
    condition = FAULT if advice.action == "drain" else SUSPECTED
    nodes = {node["metadata"]["name"]: node for host in advice.hosts if (node := kubernetes.node_of(host, advice))}
    if not arguments.act:
        return f"would set {condition} of node {','.join(nodes)} (--act does it): {advice.reason}"
    done: list[str] = []
    for name, node in nodes.items():
        if _status_of(node, condition) == "True":
            done.append(f"node {name} has {condition} already")
            continue
        message = in_one_line(f"otel_torchdist run {advice.run}: {advice.reason}", MAX_MESSAGE)
        with take_slot(arguments.state, name, arguments.a_day):
            kubernetes.set_condition(name, condition, "True", _reason_of(advice), message)
        done.append(f"set {condition} of node {name}")
    return f"{'; '.join(done)}: {advice.reason}"


def clear(name: str, arguments: argparse.Namespace) -> str:
    """End both conditions of a node; return what was done."""
    kubernetes = Kubernetes(arguments.server, arguments.token_file, arguments.ca_file)
    node = kubernetes.node(name)
    if node is None:
        raise ActionError(f"there is no node {name}")
    ended = [condition for condition in (FAULT, SUSPECTED) if _status_of(node, condition) == "True"]
    if not arguments.act:
        return f"would clear {', '.join(ended) or 'nothing'} of node {name} (--act does it)"
    for condition in ended:
        kubernetes.set_condition(name, condition, "False", "Repaired", "cleared by hand")
    return f"cleared {', '.join(ended) or 'nothing'} of node {name}"


def _status_of(node: dict[str, Any], condition: str) -> str:
    conditions = node.get("status", {}).get("conditions", [])
    return next((entry["status"] for entry in conditions if entry["type"] == condition), "")


def _reason_of(advice: Advice) -> str:
    """Return the verdict as a condition's reason: a word in camel case."""
    words = re.findall(r"[a-z]+", str(advice.document.get("verdict", "")))
    return "Verdict" + "".join(word.capitalize() for word in words)


class Kubernetes:
    """The API server."""

    def __init__(self, server: str, token_file: Path, ca_file: Path) -> None:
        """Use a server.

        Raises:
            ActionError: It has no address, or token or certificate cannot be read.
        """
        if not server.startswith("https://"):
            raise ActionError("there is no API server: run in a pod, or give --server https://…")
        self._server = server.rstrip("/")
        try:
            self._token = token_file.read_text(encoding="ascii").strip()
            context = ssl.create_default_context(cafile=str(ca_file))
        except (OSError, ValueError) as error:
            raise ActionError(f"token or certificate cannot be read: {error}") from error
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def node_of(self, host: str, advice: Advice) -> dict[str, Any]:
        """Return the node with a host name; in a pod without the host's network, that is the name of the pod.

        Raises:
            ActionError: Neither a node nor a single pod of the job's namespace has this name.
        """
        node = self.node(host)
        if node is not None:
            return node
        namespace = advice.job.get("kubernetes_namespace", "")
        if not _NAME.fullmatch(namespace):
            raise ActionError(f"refused: there is no node {host}, and the job's namespace is not known")
        pods = (self._get(f"/api/v1/namespaces/{namespace}/pods") or {}).get("items", [])
        named = [pod for pod in pods if pod["metadata"]["name"] == host]
        named = named or [pod for pod in pods if pod["spec"].get("hostname") == host]
        # An earlier attempt's pod may have the same host name, on another node.
        live = [pod for pod in named if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
        names = {pod["spec"]["nodeName"] for pod in live or named if pod["spec"].get("nodeName")}
        node = self.node(names.pop()) if len(names) == 1 else None
        if node is None:
            raise ActionError(f"refused: no node, and no single pod in {namespace}, has the host name {host}")
        return node

    def node(self, name: str) -> dict[str, Any] | None:
        """Return a node; None if there is none of this name."""
        return self._get(f"/api/v1/nodes/{name}") if _NAME.fullmatch(name) else None

    def set_condition(self, node: str, condition: str, status: str, reason: str, message: str) -> None:
        """Set a condition through the status subresource; all other conditions stay."""
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        entry = {
            "type": condition, "status": status, "reason": reason, "message": message, "lastTransitionTime": now,
            "lastHeartbeatTime": now,
        }  # fmt: skip
        self._call("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"conditions": [entry]}})

    def _get(self, path: str) -> dict[str, Any] | None:
        return self._call("GET", path)

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        """Call the API; None if there is no such object.

        Raises:
            ActionError: The server refuses, or cannot be reached.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/strategic-merge-patch+json"
            data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self._server}{path}", data, headers, method=method)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404 and method == "GET":
                return None
            raise ActionError(f"{method} {path}: {error.code} {error.reason}: {_said(error)}") from error
        except urllib.error.URLError as error:
            raise ActionError(f"{method} {path}: {error}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UnknownOutcomeError(f"{method} {path}: {type(error).__name__}: {error}") from error


def _said(error: urllib.error.HTTPError) -> str:
    """Return the begin of the body of a refusal; "" if the connection ends within it."""
    try:
        return in_one_line(error.read(2_000).decode(errors="replace"), 200)
    except (OSError, http.client.HTTPException):
        return ""


if __name__ == "__main__":
    raise SystemExit(main())
