{{- define "ringtune.name" -}}
{{- .Values.name | default .Release.Name -}}
{{- end }}

{{- define "ringtune.labels" -}}
{{ include "ringtune.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "ringtune.selector" -}}
app.kubernetes.io/name: ringtune
app.kubernetes.io/instance: {{ include "ringtune.name" . }}
{{- end }}

{{- /* Whether it is one job instead of a standing cluster. */}}
{{- define "ringtune.isJob" -}}
{{- if .Values.job.toml }}true{{ end -}}
{{- end }}

{{- define "ringtune.nodes" -}}
{{- if kindIs "invalid" .Values.workers.nodes }}2{{ else }}{{ int .Values.workers.nodes }}{{ end -}}
{{- end }}

{{- define "ringtune.workerCount" -}}
{{- mul (include "ringtune.nodes" .) .Values.workers.perNode -}}
{{- end }}

{{- /* By which the coordinator is called: the pod of a JobSet has no service of its own. */}}
{{- define "ringtune.address" -}}
{{- $name := include "ringtune.name" . -}}
{{- if include "ringtune.isJob" . }}{{ printf "%s-coordinator-0-0.%s" $name $name }}{{ else }}{{ $name }}{{ end -}}
{{- end }}

{{- define "ringtune.image" -}}
{{- $image := .root.Values.image -}}
{{ $image.registry }}/ringtune-{{ .program }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- /* Settings as environment variables. Numbers of values are floats, which print 1e+06. */}}
{{- define "ringtune.settings" -}}
{{- range $key, $value := . }}
- name: RINGTUNE__{{ $key | upper | replace "." "__" }}
  value: {{ if kindIs "slice" $value }}{{ join "," $value | quote }}{{ else if and (kindIs "float64" $value) (eq (floor $value) $value) }}{{ printf "%.0f" $value | quote }}{{ else }}{{ $value | toString | quote }}{{ end }}
{{- end }}
{{- end }}

{{- /* What contradicts itself, said in a sentence. */}}
{{- define "ringtune.check" -}}
{{- $workers := .Values.workers -}}
{{- if not .Values.image.registry }}
{{- fail "image.registry is missing: push the images (docs/containers.md) and say where they are: --set image.registry=registry.example/ringtune" }}
{{- end }}
{{- if and $workers.numaNodes (gt (int $workers.perNode) (int $workers.numaNodes)) }}
{{- fail (printf "workers.perNode = %d is more than workers.numaNodes = %d: two workers of a NUMA node wait for each other's memory; give at most one worker a NUMA node" (int $workers.perNode) (int $workers.numaNodes)) }}
{{- end }}
{{- range $part := list "coordinator" "workers" }}
{{- $resources := (index $.Values $part).resources }}
{{- range $name, $limit := $resources.limits }}
{{- if not (hasKey ($resources.requests | default dict) $name) }}
{{- fail (printf "%s.resources.limits has %s = %v, and requests has none: say how much is reserved, too" $part $name $limit) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name := list "cpu" "memory" }}
{{- $request := get ($workers.resources.requests | default dict) $name | toString }}
{{- $limit := get ($workers.resources.limits | default dict) $name | toString }}
{{- if ne $request $limit }}
{{- fail (printf "workers.resources: requests.%s = %s and limits.%s = %s differ: only a pod whose requests equal its limits gets processors of its own" $name ($request | default "nothing") $name ($limit | default "nothing")) }}
{{- end }}
{{- end }}
{{- $cpu := $workers.resources.requests.cpu | toString }}
{{- if not (regexMatch "^[1-9][0-9]*$" $cpu) }}
{{- fail (printf "workers.resources.requests.cpu = %s is no whole number: the CPU manager gives whole processors, and a quota stops all threads of a rank in the middle of a step" ($cpu | default "nothing")) }}
{{- end }}
{{- if eq $workers.kind "DaemonSet" }}
{{- if not (kindIs "invalid" $workers.nodes) }}
{{- fail "workers.nodes is of a StatefulSet: a DaemonSet has workers on all nodes that workers.nodeSelector picks; leave it out" }}
{{- end }}
{{- if .Values.job.toml }}
{{- fail "workers.kind = DaemonSet is of a standing cluster: a job has workers.nodes of its own" }}
{{- end }}
{{- end }}
{{- if .Values.job.toml }}
{{- range $key := list "min_world_size" "world_size" }}
{{- $line := regexFind (printf "(?m)^\\s*%s\\s*=\\s*[0-9]+" $key) $.Values.job.toml }}
{{- $wanted := regexFind "[0-9]+$" $line }}
{{- $has := int (include "ringtune.workerCount" $) }}
{{- $least := regexMatch "(?m)^\\s*min_world_size\\s*=" $.Values.job.toml }}
{{- if and $wanted (gt (int $wanted) $has) (or (eq $key "min_world_size") (not $least)) }}
{{- fail (printf "the job's cluster.%s = %s, and workers.nodes x workers.perNode = %d: it would never begin; give more workers, or a smaller cluster.min_world_size" $key $wanted $has) }}
{{- end }}
{{- end }}
{{- else }}
{{- range $key := list "queue" "suspend" "options" }}
{{- if get $.Values.job $key }}
{{- fail (printf "job.%s is given, and no job: --set-file job.toml=JOB.toml" $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.priorityClass.create .Values.priorityClassName }}
{{- fail (printf "priorityClassName = %s and priorityClass.create: use the class that is there, or make one" .Values.priorityClassName) }}
{{- end }}
{{- end }}
