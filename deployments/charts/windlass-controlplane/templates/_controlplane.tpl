{{- /* Secrets that all commands need for the database. */ -}}
{{- define "controlplane.databaseSecrets" -}}
- {name: database-ca, secret: {{ .Values.database.ca | quote }}, items: [ca.crt]}
- {name: database-client, secret: {{ .Values.database.clientCertificate | quote }}, items: [tls.crt, tls.key]}
{{- end -}}

{{- define "controlplane.secrets" -}}
- {name: keyset, secret: {{ .Values.keyset.secret | quote }}}
- {name: tls, secret: {{ .Values.tls.certificate | quote }}}
- {name: client-ca, secret: {{ .Values.tls.clientCA | quote }}, items: [ca.crt]}
{{ include "controlplane.databaseSecrets" . }}
- {name: restate-ca, secret: {{ .Values.restate.ca | quote }}, items: [ca.crt]}
- {name: restate-client, secret: {{ .Values.restate.clientCertificate | quote }}, items: [tls.crt, tls.key]}
- {name: restate-tls, secret: {{ .Values.restate.workflowsCertificate | quote }}, items: [tls.crt, tls.key]}
{{ include "windlass.commonSecrets" . }}
{{- end -}}

{{- define "controlplane.databaseEnv" -}}
- name: WINDLASS_MYSQL_DSN
  valueFrom: {secretKeyRef: {name: {{ .Values.database.dsn.secret }}, key: {{ .Values.database.dsn.key }}}}
{{- if .Values.database.ca }}
- {name: WINDLASS_MYSQL_CA, value: /database-ca/ca.crt}
{{- end }}
{{- if .Values.database.clientCertificate }}
- {name: WINDLASS_MYSQL_CERT, value: /database-client/tls.crt}
- {name: WINDLASS_MYSQL_KEY, value: /database-client/tls.key}
{{- end }}
{{- end -}}

{{- define "controlplane.env" -}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{ include "controlplane.databaseEnv" . }}
{{- if .Values.database.readDSN.secret }}
- name: WINDLASS_MYSQL_READ_DSN
  valueFrom: {secretKeyRef: {name: {{ .Values.database.readDSN.secret }}, key: {{ .Values.database.readDSN.key }}}}
{{- end }}
- {name: WINDLASS_LISTEN, value: ":7700"}
{{- if .Values.tls.certificate }}
- {name: WINDLASS_TLS_CERT, value: /tls/tls.crt}
- {name: WINDLASS_TLS_KEY, value: /tls/tls.key}
{{- else }}
# TLS ends in front of the pods.
- {name: WINDLASS_INSECURE, value: "true"}
{{- end }}
{{- if .Values.tls.clientCA }}
- {name: WINDLASS_CLIENT_CA, value: /client-ca/ca.crt}
{{- end }}
- {name: WINDLASS_KEY_FILE, value: {{ printf "/keyset/%s" .Values.keyset.key | quote }}}
- {name: WINDLASS_RESTATE_INGRESS, value: {{ .Values.restate.ingress | quote }}}
- {name: WINDLASS_RESTATE_ADMIN, value: {{ .Values.restate.admin | quote }}}
- {name: WINDLASS_RESTATE_LISTEN, value: ":7701"}
- {name: WINDLASS_RESTATE_ADVERTISE, value: {{ printf "%s://%s-workflows.%s:7701" (empty .Values.restate.workflowsCertificate | ternary "http" "https") (include "windlass.fullname" .) .Release.Namespace | quote }}}
{{- if .Values.restate.ca }}
- {name: WINDLASS_RESTATE_CA, value: /restate-ca/ca.crt}
{{- end }}
{{- if .Values.restate.clientCertificate }}
- {name: WINDLASS_RESTATE_CERT, value: /restate-client/tls.crt}
- {name: WINDLASS_RESTATE_KEY, value: /restate-client/tls.key}
{{- end }}
{{- if .Values.restate.workflowsCertificate }}
- {name: WINDLASS_RESTATE_TLS_CERT, value: /restate-tls/tls.crt}
- {name: WINDLASS_RESTATE_TLS_KEY, value: /restate-tls/tls.key}
{{- end }}
{{- with .Values.restate.identityKeys }}
- {name: WINDLASS_RESTATE_IDENTITY_KEY, value: {{ join "," . | quote }}}
{{- end }}
- {name: WINDLASS_PEER_LISTEN, value: ":7702"}
- {name: WINDLASS_PEER_ADVERTISE, value: "$(POD_IP):7702"}
- {name: WINDLASS_DOMAIN, value: {{ .Values.domain | quote }}}
{{ include "windlass.commonEnv" . }}
{{- end -}}

{{- /* Faults that a schema cannot name. */ -}}
{{- define "controlplane.check" -}}
{{- if and .Values.tls.clientCA (not .Values.tls.certificate) -}}
{{- fail "tls.clientCA: clients send certificates only with TLS: set tls.certificate, or remove it" -}}
{{- end -}}
{{- if and .Values.backup.enabled (not .Values.backup.volume) -}}
{{- fail "backup.volume: set it, such as to {persistentVolumeClaim: {claimName: NAME}}, because backup.enabled is true" -}}
{{- end -}}
{{- if and .Values.backup.upload (not .Values.backup.upload.image) -}}
{{- fail "backup.upload.image: set the image of the container that copies backups" -}}
{{- end -}}
{{- end -}}
