{{- define "tidewheel.name" -}}
{{- if contains "tidewheel" .Release.Name -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-tidewheel" (.Release.Name | trunc 30 | trimSuffix "-") }}{{- end -}}
{{- end -}}

{{- define "tidewheel.selector" -}}
app.kubernetes.io/name: tidewheel
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidewheel.labels" -}}
{{ include "tidewheel.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tidewheel.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* What a pod of each kind has, but for its containers. The role is that of the database, or "owner". */}}
{{- define "tidewheel.pod" -}}
{{- $root := .root -}}
automountServiceAccountToken: false
enableServiceLinks: false  # of a release `tidewheel`: TIDEWHEEL_API_PORT=tcp://…
securityContext:
  {runAsNonRoot: true, runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, seccompProfile: {type: RuntimeDefault}}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with merge (dict) (.pod | default dict) $root.Values.pod }}
{{ toYaml . }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {}
  - name: database
    secret:
      secretName: {{ $root.Values.database.secret }}
      defaultMode: 0440
      items: [{key: {{ .role }}, path: password}]
{{- if $root.Values.database.ca }}
  - name: ca
    secret: {secretName: {{ $root.Values.database.ca }}, defaultMode: 0440}
{{- end }}
{{- if $root.Values.kafka.secret }}
  - name: kafka
    secret: {secretName: {{ $root.Values.kafka.secret }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{/* What each container has: image, confinement, addresses, settings, mounts. */}}
{{- define "tidewheel.container" -}}
{{- $root := .root -}}
{{- $values := .root.Values -}}
image: {{ include "tidewheel.image" $root }}
imagePullPolicy: {{ $values.image.pullPolicy }}
securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
env:
  - name: TIDEWHEEL_DATABASE_URL
    {{- $verified := ternary "sslmode=verify-full&sslrootcert=/run/secrets/ca/ca.crt" "" (not (empty $values.database.ca)) }}
    {{- $parameters := list $values.database.parameters $verified | compact | join "&" }}
    value: {{ printf "postgresql://%s@%s/%s?%s" .user $values.database.hosts $values.database.name $parameters | quote }}
  - {name: TIDEWHEEL_DATABASE_PASSWORD_FILE, value: /run/secrets/database/password}
  - name: TIDEWHEEL_KAFKA_BOOTSTRAP
    value: {{ $values.kafka.bootstrap | quote }}
  - name: TIDEWHEEL_ROLE_PREFIX
    value: {{ $values.database.rolePrefix | quote }}
{{- if $values.kafka.secret }}
  - {name: TIDEWHEEL_KAFKA_PROPERTIES, value: /run/secrets/kafka/kafka.properties}
{{- end }}
  - name: TIDEWHEEL_REPLICATION
    value: {{ $values.kafka.replication | quote }}
  - name: TIDEWHEEL_RUNS_PARTITIONS
    value: {{ $values.kafka.runsPartitions | quote }}
  - name: TIDEWHEEL_EVENTS_PARTITIONS
    value: {{ $values.kafka.eventsPartitions | quote }}
{{- if $values.archive.to }}
  - name: TIDEWHEEL_ARCHIVE
    value: {{ $values.archive.to | quote }}
{{- end }}
{{- range $name, $value := merge (dict) .settings $values.settings }}
{{- /* toString would write a million as 1e+06. */}}
  - name: {{ $name }}
    value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- with .more }}
{{ . }}
{{- end }}
{{- with concat $values.secretsFrom (.secretsFrom | default list) }}
envFrom: {{- range . }}
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: database, mountPath: /run/secrets/database, readOnly: true}
{{- if $values.database.ca }}
  - {name: ca, mountPath: /run/secrets/ca, readOnly: true}
{{- end }}
{{- if $values.kafka.secret }}
  - {name: kafka, mountPath: /run/secrets/kafka, readOnly: true}
{{- end }}
{{- end -}}

{{/* The ports that every pod connects to: those that the values name, and `networkPolicy.ports`. */}}
{{- define "tidewheel.ports" -}}
{{- $ports := list -}}
{{- range splitList "," .Values.database.hosts -}}
{{- $ports = append $ports (regexFind "[0-9]+$" (regexFind ":[0-9]+$" .) | default "5432" | int) -}}
{{- end -}}
{{- range splitList "," .Values.kafka.bootstrap -}}
{{- $ports = append $ports (regexFind "[0-9]+$" . | int) -}}
{{- end -}}
{{- $all := list .Values.settings -}}
{{- range $each := concat (values .Values.services) (values .Values.executors) -}}{{- $all = append $all ($each.settings | default dict) -}}{{- end -}}
{{- range $settings := $all -}}
{{- range $name, $value := $settings -}}
{{- if regexMatch "^OTEL_EXPORTER_OTLP_(TRACES_)?ENDPOINT$" $name -}}
{{- $port := regexFind "[0-9]+$" (regexFind "^[a-z]+://[^/]+:[0-9]+" $value) -}}
{{- $ports = append $ports ($port | default (ternary "443" "80" (hasPrefix "https:" $value)) | int) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $rules := list -}}
{{- range .Values.networkPolicy.ports -}}{{- $ports = append $ports (int .) -}}{{- end -}}
{{- range uniq $ports -}}{{- $rules = append $rules (dict "port" .) -}}{{- end -}}
{{- toJson $rules -}}
{{- end -}}

{{/* The queues of all pools, separated by commas. A job without a queue has the queue `default`. */}}
{{- define "tidewheel.queues" -}}
{{- $queues := list "default" -}}
{{- range .Values.executors -}}{{- $queues = concat $queues .queues -}}{{- end -}}
{{- uniq $queues | join "," -}}
{{- end -}}
