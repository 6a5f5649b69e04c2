{{- /*
Templates of all charts. `go tool task generate` copies deployments/charts/common.tpl into each of them.
*/ -}}

{{- /* Name of the objects. It leaves room for suffixes: a CronJob's name has at most 52 characters. */ -}}
{{- define "windlass.fullname" -}}
{{- $name := .Values.fullnameOverride -}}
{{- if not $name -}}
{{- $name = contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{- end -}}
{{- trunc 44 $name | trimSuffix "-" -}}
{{- end -}}

{{- /* Labels that select the pods. They must not change. */ -}}
{{- define "windlass.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "windlass.labels" -}}
{{- $own := merge (include "windlass.selector" . | fromYaml) (dict "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/part-of" "windlass") -}}
{{- toYaml (merge $own .Values.labels) -}}
{{- end -}}

{{- /* Metadata of an object in the release's namespace: dict "of" $ "suffix" SUFFIX "annotations" MAP. */ -}}
{{- define "windlass.metadata" -}}
name: {{ include "windlass.fullname" .of }}{{ .suffix }}
namespace: {{ .of.Release.Namespace }}
labels:
  {{- include "windlass.labels" .of | nindent 2 }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "windlass.image" -}}
{{- $image := .Values.image -}}
{{- $image.repository }}{{ $image.digest | empty | ternary (printf ":%s" (default .Chart.AppVersion $image.tag)) (printf "@%s" $image.digest) -}}
{{- end -}}

{{- /* Annotations of pods. */ -}}
{{- define "windlass.podAnnotations" -}}
{{- $scrape := dict -}}
{{- if .Values.metrics.annotations -}}
{{- $scrape = dict "prometheus.io/scrape" "true" "prometheus.io/port" "9090" "prometheus.io/path" "/metrics" "prometheus.io/scheme" (empty .Values.metrics.certificate | ternary "http" "https") -}}
{{- end -}}
{{- with merge (deepCopy .Values.podAnnotations) $scrape -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{- /* Metadata of the pods of a Deployment: dict "of" $ "annotations" MAP. */ -}}
{{- define "windlass.podMetadata" -}}
labels:
  {{- toYaml (merge (include "windlass.selector" .of | fromYaml) .of.Values.podLabels) | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) (include "windlass.podAnnotations" .of | fromYaml) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Fields of a pod that are the same for all pods of a chart. */ -}}
{{- define "windlass.podFields" -}}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ quote . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "windlass.topologySpread" -}}
{{- $labels := include "windlass.selector" . | fromYaml -}}
{{- with .Values.topologySpread }}
topologySpreadConstraints:
{{- range . }}
  - {{ toYaml (merge (dict "labelSelector" (dict "matchLabels" $labels)) .) | nindent 4 | trim }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Fields of a container that are the same for all containers of a chart: dict "of" $ "resources" MAP. */ -}}
{{- define "windlass.containerFields" -}}
image: {{ include "windlass.image" .of }}
imagePullPolicy: {{ .of.Values.image.pullPolicy }}
resources:
  {{- toYaml .resources | nindent 2 }}
securityContext:
  {{- toYaml .of.Values.securityContext | nindent 2 }}
{{- end -}}

{{- define "windlass.probes" -}}
{{- $scheme := empty .Values.metrics.certificate | ternary "HTTP" "HTTPS" -}}
livenessProbe:
  {{- toYaml (mergeOverwrite (dict "httpGet" (dict "path" "/healthz" "port" "metrics" "scheme" $scheme) "periodSeconds" 10) (deepCopy .Values.probes.liveness)) | nindent 2 }}
readinessProbe:
  {{- toYaml (mergeOverwrite (dict "httpGet" (dict "path" "/readyz" "port" "metrics" "scheme" $scheme) "periodSeconds" 5) (deepCopy .Values.probes.readiness)) | nindent 2 }}
{{- end -}}

{{- /* Arguments from the value "flags". A flag wins over an environment variable. */ -}}
{{- define "windlass.flags" -}}
{{- range $name, $value := .Values.flags }}
- {{ printf "--%s=%s" $name (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
{{- end }}
{{- end -}}

{{- /* Fails if the value "env" repeats a variable: dict "of" $ "env" LIST, the variables that the chart sets. */ -}}
{{- define "windlass.checkEnv" -}}
{{- $names := list -}}
{{- range .env -}}{{- $names = append $names .name -}}{{- end -}}
{{- range $i, $e := .of.Values.env -}}
{{- if has $e.name $names -}}
{{- fail (printf "env[%d].name: the chart sets %s itself, or it is there twice: use the value for it (helm show values), or \"flags\"" $i $e.name) -}}
{{- end -}}
{{- $names = append $names $e.name -}}
{{- end -}}
{{- end -}}

{{- /* Variables of metrics and logs, which each program has. */ -}}
{{- define "windlass.commonEnv" -}}
- {name: WINDLASS_METRICS_LISTEN, value: ":9090"}
{{- if .Values.metrics.certificate }}
- {name: WINDLASS_METRICS_TLS_CERT, value: /metrics-tls/tls.crt}
- {name: WINDLASS_METRICS_TLS_KEY, value: /metrics-tls/tls.key}
{{- end }}
{{- if .Values.metrics.token.secret }}
- {name: WINDLASS_METRICS_TOKEN_FILE, value: {{ printf "/metrics-token/%s" .Values.metrics.token.key | quote }}}
{{- end }}
- {name: WINDLASS_LOG_FORMAT, value: {{ .Values.log.format }}}
- {name: WINDLASS_LOG_LEVEL, value: {{ .Values.log.level }}}
{{- end -}}

{{- /* Secrets of metrics, in the form of windlass.volumes. */ -}}
{{- define "windlass.commonSecrets" -}}
- {name: metrics-tls, secret: {{ .Values.metrics.certificate | quote }}}
- {name: metrics-token, secret: {{ .Values.metrics.token.secret | quote }}}
{{- end -}}

{{- /* Volumes of Secrets that are not "": a list of {name, secret, optional, items}. Each is mounted at /NAME. */ -}}
{{- define "windlass.volumes" -}}
{{- range . }}
{{- if .secret }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0400
    {{- if .optional }}
    optional: true
    {{- end }}
    {{- with .items }}
    items:
      {{- range . }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "windlass.mounts" -}}
{{- range . }}
{{- if .secret }}
- {name: {{ .name }}, mountPath: /{{ .name }}, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{- define "windlass.podDisruptionBudget" -}}
{{- if .Values.podDisruptionBudget.enabled -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "windlass.metadata" (dict "of" . "suffix" "") | nindent 2 }}
spec:
  maxUnavailable: {{ .Values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "windlass.selector" . | nindent 6 }}
{{- end }}
{{- end -}}

{{- /* A Service for the ServiceMonitor alone, so that the metrics are not behind a load balancer. */ -}}
{{- define "windlass.serviceMonitor" -}}
{{- $monitor := .Values.metrics.serviceMonitor -}}
{{- if $monitor.enabled -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "windlass.metadata" (dict "of" . "suffix" "-metrics") | nindent 2 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector:
    {{- include "windlass.selector" . | nindent 4 }}
  ports:
    - {name: metrics, port: 9090, targetPort: metrics}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ include "windlass.fullname" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- toYaml (merge (include "windlass.labels" . | fromYaml) $monitor.labels) | nindent 4 }}
spec:
  # Rules and dashboards of deployments/observability name the programs by this label.
  jobLabel: app.kubernetes.io/name
  selector:
    matchLabels:
      {{- include "windlass.selector" . | nindent 6 }}
  endpoints:
    - port: metrics
      interval: {{ $monitor.interval }}
      scheme: {{ empty .Values.metrics.certificate | ternary "http" "https" }}
      {{- with $monitor.tlsConfig }}
      tlsConfig:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .Values.metrics.token }}
      {{- if .secret }}
      authorization:
        credentials: {name: {{ .secret }}, key: {{ .key }}}
      {{- end }}
      {{- end }}
      relabelings:
        - {sourceLabels: [__meta_kubernetes_pod_name], targetLabel: instance}
        {{- with .Values.region }}
        - {targetLabel: region, replacement: {{ quote . }}}
        {{- end }}
{{- end }}
{{- end -}}

{{- /* Rule of a NetworkPolicy: dict "from" LIST "ports" NAMES. An empty list is everybody. */ -}}
{{- define "windlass.ingressRule" -}}
- ports:
    {{- range .ports }}
    - {port: {{ . }}}
    {{- end }}
  {{- with .from }}
  from:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{- define "windlass.extraManifests" -}}
{{- range .Values.extraManifests }}
---
{{ tpl (toYaml .) $ }}
{{- end }}
{{- end -}}
