{{- /* The fields of a pod that all pods here have. */}}
{{- define "ringtune.pod" -}}
serviceAccountName: {{ include "ringtune.name" .root }}
# The one container that calls the API server has the account's token mounted.
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- if .root.Values.priorityClass.create }}
priorityClassName: {{ include "ringtune.name" .root }}
{{- else if .root.Values.priorityClassName }}
priorityClassName: {{ .root.Values.priorityClassName }}
{{- end }}
{{- with .part.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .part.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "ringtune.container" -}}
image: {{ include "ringtune.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* The volumes of models and data, and where they are mounted. */}}
{{- define "ringtune.readVolumes" -}}
{{- range $name := list "models" "data" }}
{{- with (index $.Values $name).volume }}
- name: {{ $name }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ringtune.readMounts" -}}
{{- range $name := list "models" "data" }}
{{- $place := index $.Values $name }}
{{- if $place.volume }}
- {name: {{ $name }}, mountPath: {{ $place.path }}, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{- define "ringtune.coordinatorContainer" -}}
{{- $name := include "ringtune.name" . -}}
{{- $space := .Release.Namespace -}}
{{- $own := list (include "ringtune.address" .) (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) (printf "%s.%s.svc.cluster.local" $name $space) -}}
name: coordinator
{{ include "ringtune.container" (dict "root" . "program" "coordinator") }}
args: [--listen, "{{ .Values.listenAddress }}:7070", --http-listen, "{{ .Values.listenAddress }}:7071"]
env:
  # Below the volume's root, whose group and mode are the kubelet's. The command finds its credentials there.
  - {name: RINGTUNE__STORAGE__STATE_DIR, value: /var/lib/ringtune/state}
  - name: RINGTUNE__AUTHORITY__NAMES
    value: {{ concat $own .Values.coordinator.names | join "," | quote }}
  {{- with include "ringtune.settings" .Values.coordinator.settings | trim }}{{ . | nindent 2 }}{{ end }}
ports:
  - {name: grpc, containerPort: 7070}
  - {name: http, containerPort: 7071}
startupProbe:
  httpGet: {path: /readyz, port: http, scheme: HTTPS}
  periodSeconds: 2
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /healthz, port: http, scheme: HTTPS}
  periodSeconds: 20
  timeoutSeconds: 10
readinessProbe:
  httpGet: {path: /readyz, port: http, scheme: HTTPS}
  timeoutSeconds: 5
resources: {{ toYaml .Values.coordinator.resources | nindent 2 }}
volumeMounts:
  - {name: state, mountPath: /var/lib/ringtune}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- /* Keeps a token in a Secret: `ringtune token create --renew`. */}}
{{- define "ringtune.tokenContainer" -}}
name: {{ .name }}
{{ include "ringtune.container" (dict "root" .root "program" "coordinator") }}
command: [ringtune]
args:
  - token
  - create
  {{- range .arguments }}
  - {{ . | quote }}
  {{- end }}
  - --renew
  - --kubernetes-secret
  - {{ include "ringtune.name" .root }}-{{ .name }}
  - --service-account
  - /run/ringtune/account
env:
  - {name: RINGTUNE__STORAGE__STATE_DIR, value: /var/lib/ringtune/state}
resources:
  requests: {cpu: 10m, memory: 32Mi}
  limits: {cpu: 500m, memory: 128Mi}
volumeMounts:
  - {name: state, mountPath: /var/lib/ringtune}
  - {name: tmp, mountPath: /tmp}
  - {name: account, mountPath: /run/ringtune/account, readOnly: true}
{{- end }}

{{- define "ringtune.joinContainer" -}}
{{- $arguments := list "--role" "worker" "--uses" (.Values.join.uses | int | toString) "--ttl" .Values.join.ttl -}}
{{ include "ringtune.tokenContainer" (dict "root" . "name" "join" "arguments" $arguments) }}
{{- end }}

{{- define "ringtune.coordinatorVolumes" -}}
- {name: tmp, emptyDir: {}}
- name: account
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3600}
      - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
      - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
{{- end }}

{{- /* A worker's pod, but for its volume `state` where that is a claim's. */}}
{{- define "ringtune.workerPod" -}}
{{- $root := .root -}}
{{- $workers := $root.Values.workers -}}
{{ include "ringtune.pod" (dict "root" $root "part" $workers) }}
terminationGracePeriodSeconds: {{ add $workers.graceSeconds 15 }}
{{- with $workers.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: {{ $workers.spread }}
    labelSelector:
      matchLabels: {{ include "ringtune.selector" $root | nindent 8 }}
        app.kubernetes.io/component: worker
containers:
  - name: {{ .container }}
    {{- include "ringtune.container" (dict "root" $root "program" "worker") | nindent 4 }}
    args:
      - --listen
      - "{{ $root.Values.listenAddress }}:7080"
      - --http-listen
      - "{{ $root.Values.listenAddress }}:7081"
      - --coordinator
      - https://{{ include "ringtune.address" $root }}:7070
      - --join-file
      - /run/ringtune/join/token
    env:
      - {name: RINGTUNE__STORAGE__STATE_DIR, value: /var/lib/ringtune/state}
      - {name: RINGTUNE__SHUTDOWN__GRACE_SECONDS, value: {{ $workers.graceSeconds | quote }}}
      {{- with .exitCode }}
      # A pod of a Job that ends with 0 is taken for done, and gets no successor.
      - {name: RINGTUNE__SHUTDOWN__EXIT_CODE, value: {{ . | quote }}}
      {{- end }}
      {{- if $root.Values.models.volume }}
      - {name: RINGTUNE__ACCESS__MODEL_ROOTS, value: "auto,{{ $root.Values.models.path }}"}
      {{- end }}
      {{- if $root.Values.data.volume }}
      - {name: RINGTUNE__ACCESS__DATA_ROOTS, value: "auto,{{ $root.Values.data.path }}"}
      {{- end }}
      {{- with include "ringtune.settings" $workers.settings | trim }}{{ . | nindent 6 }}{{ end }}
    ports:
      - {name: ring, containerPort: 7080}
      - {name: http, containerPort: 7081}
    readinessProbe:
      httpGet: {path: /healthz, port: http, scheme: HTTPS}
      timeoutSeconds: 5
    resources: {{ toYaml $workers.resources | nindent 6 }}
    volumeMounts:
      - {name: state, mountPath: /var/lib/ringtune}
      - {name: tmp, mountPath: /tmp}
      - {name: join, mountPath: /run/ringtune/join, readOnly: true}
      {{- with include "ringtune.readMounts" $root | trim }}{{ . | nindent 6 }}{{ end }}
volumes:
  - {name: tmp, emptyDir: {}}
  # The pod waits until the coordinator has put the token into it.
  - name: join
    secret: {secretName: {{ include "ringtune.name" $root }}-join, items: [{key: token, path: token}], defaultMode: 0440}
  {{- if .ownDisk }}
  - {name: state, emptyDir: {sizeLimit: {{ $workers.storage.size }}}}
  {{- end }}
  {{- with include "ringtune.readVolumes" $root | trim }}{{ . | nindent 2 }}{{ end }}
{{- end }}
