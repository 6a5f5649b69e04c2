{{- define "agent.secrets" -}}
- {name: join, secret: {{ .Values.joinToken.secret | quote }}, optional: true}
- {name: server-ca, secret: {{ .Values.serverTLS.ca | quote }}, items: [ca.crt]}
- {name: server-client, secret: {{ .Values.serverTLS.clientCertificate | quote }}, items: [tls.crt, tls.key]}
- {name: routes-tls, secret: {{ .Values.routes.certificate | quote }}, items: [ca.crt, tls.crt, tls.key]}
{{ include "windlass.commonSecrets" . }}
{{- end -}}

{{- define "agent.gatewaySelector" -}}
{{- .Values.gatewaySelector | default (printf "namespace:kubernetes.io/metadata.name=%s,pod:app.kubernetes.io/name=windlass-gateway" .Release.Namespace) -}}
{{- end -}}

{{- define "agent.env" -}}
- {name: WINDLASS_SERVER, value: {{ .Values.server | quote }}}
{{- if .Values.serverTLS.ca }}
- {name: WINDLASS_SERVER_CA, value: /server-ca/ca.crt}
{{- end }}
{{- if .Values.serverTLS.clientCertificate }}
- {name: WINDLASS_CLIENT_CERT, value: /server-client/tls.crt}
- {name: WINDLASS_CLIENT_KEY, value: /server-client/tls.key}
{{- end }}
- {name: WINDLASS_RUNTIME, value: kubernetes}
- {name: WINDLASS_AGENT_DATA_DIR, value: /data}
- {name: WINDLASS_JOIN_TOKEN_FILE, value: {{ printf "/join/%s" .Values.joinToken.key | quote }}}
- {name: WINDLASS_CREDENTIAL_SECRET, value: {{ include "windlass.fullname" . }}-credential}
- {name: WINDLASS_POOLS_FILE, value: /config/pools.yaml}
{{- if .Values.podPolicy }}
- {name: WINDLASS_POD_POLICY_FILE, value: /config/pod-policy.yaml}
{{- end }}
- {name: WINDLASS_GATEWAY_SELECTOR, value: {{ include "agent.gatewaySelector" . | quote }}}
{{- with .Values.monitoringSelector }}
- {name: WINDLASS_MONITORING_SELECTOR, value: {{ quote . }}}
{{- end }}
# For health checks that the kubelet cannot make. The agent adds a container with this image to pods
# of apps that need it. Its entrypoint has to be the agent.
- {name: WINDLASS_HEALTH_IMAGE, value: {{ .Values.healthImage | default (include "windlass.image" .) | quote }}}
{{- with .Values.loaderImage }}
- {name: WINDLASS_LOADER_IMAGE, value: {{ quote . }}}
{{- end }}
# Address at which gateways get routes. They need a certificate for it.
- {name: WINDLASS_GATEWAY_LISTEN, value: ":7720"}
{{- if .Values.routes.certificate }}
- {name: WINDLASS_LISTEN_TLS_CERT, value: /routes-tls/tls.crt}
- {name: WINDLASS_LISTEN_TLS_KEY, value: /routes-tls/tls.key}
- {name: WINDLASS_LISTEN_CLIENT_CA, value: /routes-tls/ca.crt}
{{- else }}
- {name: WINDLASS_GATEWAY_SECRET, value: {{ .Values.routes.accessSecret }}}
{{- end }}
{{- if .Values.routes.xds }}
- {name: WINDLASS_XDS_LISTEN, value: ":7721"}
{{- end }}
{{- with .Values.gatewayAPI.gateway }}
- {name: WINDLASS_GATEWAY_API, value: {{ quote . }}}
- {name: WINDLASS_ROUTES_NAMESPACE, value: {{ $.Values.gatewayAPI.routesNamespace }}}
{{- end }}
{{ include "windlass.commonEnv" . }}
{{- end -}}

{{- define "agent.config" -}}
# GPU pools that deployments may ask for by name, such as
#   - name: h100
#     nodeSelector: {cloud.example.com/nodepool: h100}
#     tolerations: [{key: team, operator: Exists}]
#     quota: 64
pools.yaml: |
  {{- dict "pools" .Values.pools | toYaml | nindent 2 }}
{{- with .Values.podPolicy }}
pod-policy.yaml: |
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
