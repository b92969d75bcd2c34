{{- define "otel-torchdist.fullname" -}}
{{- /* Names of services and pods have at most 63 characters; the longest ending is `-training-1023`. */ -}}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) }}
{{- $name | trunc 48 | trimSuffix "-" }}
{{- end }}

{{- /* Labels of a resource; the argument has the chart's context as `root` and the resource's `name`. */ -}}
{{- define "otel-torchdist.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "otel-torchdist.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "otel-torchdist.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* The agent's container, without what depends on where it runs. */ -}}
{{- define "otel-torchdist.agent" -}}
image: {{ include "otel-torchdist.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [otel-torchdist, agent, --watch]
ports:
  - name: torchdist
    containerPort: 9464
    protocol: TCP
livenessProbe:
  tcpSocket:
    port: torchdist
  initialDelaySeconds: 30
  periodSeconds: 30
{{- end }}

{{- /* `$(NAME)` is replaced only if the variable is defined before it. */ -}}
{{- define "otel-torchdist.environment" -}}
{{- $values := dict
  "OTEL_EXPORTER_PROMETHEUS_HOST" "listen"
  "OTEL_EXPORTER_OTLP_ENDPOINT" "otlp.endpoint"
  "OTEL_EXPORTER_OTLP_HEADERS" "otlp.headersSecret"
  "OTEL_EXPORTER_OTLP_CERTIFICATE" "otlp.certificateConfigMap"
  "OTEL_PYTHON_TORCHDIST_BUNDLES" "bundlesClaim" }}
{{- range $name, $value := $values }}
{{- if hasKey $.Values.settings $name }}{{ fail (printf "settings.%s: set the value %s instead" $name $value) }}{{ end }}
{{- end }}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: OTEL_EXPORTER_PROMETHEUS_HOST
  value: {{ .Values.listen | quote }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .Values.otlp.endpoint | quote }}
{{- with .Values.otlp.headersSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: headers
{{- end }}
{{- if .Values.otlp.certificateConfigMap }}
- name: OTEL_EXPORTER_OTLP_CERTIFICATE
  value: /etc/otlp/ca.crt
{{- end }}
{{- if .Values.bundlesClaim }}
- name: OTEL_PYTHON_TORCHDIST_BUNDLES
  value: /bundles
{{- end }}
{{- range $name, $value := omit .Values.settings "OTEL_RESOURCE_ATTRIBUTES" }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* Mounts and volumes that all agents have; `prefix` keeps the names apart from those of other people's pods. */ -}}
{{- define "otel-torchdist.mounts" -}}
- name: {{ .prefix }}tmp
  mountPath: /tmp
{{- if .root.Values.otlp.certificateConfigMap }}
- name: {{ .prefix }}otlp-ca
  mountPath: /etc/otlp
  readOnly: true
{{- end }}
{{- if .root.Values.bundlesClaim }}
- name: {{ .prefix }}bundles
  mountPath: /bundles
{{- end }}
{{- end }}

{{- define "otel-torchdist.volumes" -}}
- name: {{ .prefix }}tmp
  emptyDir: {}
{{- with .root.Values.otlp.certificateConfigMap }}
- name: {{ $.prefix }}otlp-ca
  configMap:
    name: {{ . }}
{{- end }}
{{- with .root.Values.bundlesClaim }}
- name: {{ $.prefix }}bundles
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- end }}

{{- /* The agent beside the ranks of one pod. `shm` is the volume that both mount; `user` is null where the pod states it. */ -}}
{{- define "otel-torchdist.sidecar" -}}
name: torchdist-agent
restartPolicy: Always
{{ include "otel-torchdist.agent" .root }}
env:
  {{- include "otel-torchdist.environment" .root | nindent 2 }}
  {{- if not (hasKey .root.Values.settings "OTEL_SERVICE_NAME") }}
  # The label of the pod; without one, the agent names the service itself.
  - name: OTEL_SERVICE_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.labels['app.kubernetes.io/name']
  {{- end }}
  - name: OTEL_RESOURCE_ATTRIBUTES
    value: k8s.namespace.name=$(POD_NAMESPACE),k8s.pod.name=$(POD_NAME),k8s.node.name=$(NODE_NAME)
      {{- with .root.Values.settings.OTEL_RESOURCE_ATTRIBUTES }},{{ . }}{{ end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  {{- with .user }}
  runAsUser: {{ . | quote }}
  {{- end }}
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
resources: {{- toYaml .root.Values.sidecar.resources | nindent 2 }}
volumeMounts:
  - name: {{ .shm | quote }}
    mountPath: /dev/shm
  {{- include "otel-torchdist.mounts" (dict "root" .root "prefix" "torchdist-") | nindent 2 }}
{{- end }}

{{- /* Variables of ranks that have a sidecar. */ -}}
{{- define "otel-torchdist.ranks" -}}
- name: OTEL_PYTHON_TORCHDIST_ENABLED
  value: "true"
# The sidecar reads the tapes: an agent started by a rank would end with its container.
- name: OTEL_PYTHON_TORCHDIST_READER
  value: none
# The address on which the sidecars of the job's pods listen for each other, on any port; ranks announce it.
- name: OTEL_PYTHON_TORCHDIST_EXCHANGE_HOST
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end }}

{{- /* A value as an expression of CEL, for the API server. A text that begins with `cel:` is an expression already. */ -}}
{{- define "otel-torchdist.cel" -}}
{{- $type := .type }}
{{- if kindIs "map" .value -}}
{{- $plain := has (last (splitList "." $type)) (list "requests" "limits") -}}
{{- if not $plain }}{{ $type }}{{ end }}{
{{- range $index, $key := keys .value | sortAlpha }}{{ if $index }}, {{ end }}
{{- if $plain }}{{ toJson $key }}{{ else }}{{ $key }}{{ end }}: {{ include "otel-torchdist.cel" (dict "type" (printf "%s.%s" $type $key) "value" (get $.value $key)) }}
{{- end }}}
{{- else if kindIs "slice" .value -}}
[{{ range $index, $each := .value }}{{ if $index }}, {{ end }}{{ include "otel-torchdist.cel" (dict "type" $type "value" $each) }}{{ end }}]
{{- else if and (kindIs "string" .value) (hasPrefix "cel:" .value) -}}
{{ trimPrefix "cel:" .value }}
{{- else -}}
{{ toJson .value }}
{{- end }}
{{- end }}
