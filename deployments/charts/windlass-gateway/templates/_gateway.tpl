{{- define "gateway.secrets" -}}
- {name: agent, secret: {{ .Values.agent.secret | quote }}, items: [ca.crt, tls.crt, tls.key]}
- {name: tls, secret: {{ .Values.tls.enabled | ternary .Values.tls.certificate "" | quote }}, items: [tls.crt, tls.key]}
{{ include "windlass.commonSecrets" . }}
{{- end -}}

{{- define "gateway.env" -}}
- {name: WINDLASS_GATEWAY_AGENT, value: {{ .Values.agent.url | quote }}}
{{- if .Values.agent.secret }}
- {name: WINDLASS_GATEWAY_AGENT_CA, value: /agent/ca.crt}
- {name: WINDLASS_GATEWAY_AGENT_CERT, value: /agent/tls.crt}
- {name: WINDLASS_GATEWAY_AGENT_KEY, value: /agent/tls.key}
{{- end }}
- {name: WINDLASS_GATEWAY_LISTEN, value: ":8080"}
{{- if .Values.tls.enabled }}
- {name: WINDLASS_GATEWAY_TLS_LISTEN, value: ":8443"}
{{- if .Values.tls.certificate }}
- {name: WINDLASS_GATEWAY_TLS_CERT, value: /tls/tls.crt}
- {name: WINDLASS_GATEWAY_TLS_KEY, value: /tls/tls.key}
{{- end }}
{{- if .Values.tls.http3 }}
- {name: WINDLASS_GATEWAY_HTTP3, value: "true"}
{{- end }}
{{- end }}
- {name: WINDLASS_GATEWAY_DATA_DIR, value: /data}
# /readyz fails for this time before connections are closed, so that load balancers see it.
- {name: WINDLASS_GATEWAY_DRAIN_DELAY, value: {{ int .Values.drain.delaySeconds }}s}
- {name: WINDLASS_GATEWAY_DRAIN_TIMEOUT, value: {{ int .Values.drain.timeoutSeconds }}s}
{{ include "windlass.commonEnv" . }}
{{- end -}}

{{- /* Faults that a schema cannot name. */ -}}
{{- define "gateway.check" -}}
{{- $acme := index .Values.flags "acme-directory" -}}
{{- if and .Values.tls.enabled (not .Values.tls.certificate) (not $acme) -}}
{{- fail "tls.certificate: set it, or flags.acme-directory, because tls.enabled is true" -}}
{{- end -}}
{{- if and (not .Values.tls.enabled) (or .Values.tls.certificate .Values.tls.http3 $acme) -}}
{{- fail "tls.enabled: set it to true, because tls.certificate, tls.http3 or flags.acme-directory is set" -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.maxReplicas: it is less than autoscaling.minReplicas" -}}
{{- end -}}
{{- end -}}
