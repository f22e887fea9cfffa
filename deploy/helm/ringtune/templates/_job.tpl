{{- /* The JobSet's spec: a coordinator whose main container submits the job and follows it, and workers. */}}
{{- define "ringtune.jobSetSpec" -}}
{{- $name := include "ringtune.name" . -}}
{{- $request := printf "%s %v" .Values.job.toml .Values.job.options | sha256sum | trunc 32 -}}
{{- /* Between the request to end and the command's end the workers leave, and the coordinator keeps what they have. */}}
{{- $leaving := add .Values.workers.graceSeconds 5 -}}
network: {enableDNSHostnames: true, publishNotReadyAddresses: true}
# The job's outcome is that of the command.
successPolicy: {operator: All, targetReplicatedJobs: [coordinator]}
failurePolicy: {maxRestarts: 0}
replicatedJobs:
  - name: coordinator
    replicas: 1
    template:
      spec:
        parallelism: 1
        completions: 1
        backoffLimit: 20
        # Two coordinators never have one volume.
        podReplacementPolicy: Failed
        podFailurePolicy:
          rules:
            - action: Ignore
              onPodConditions: [{type: DisruptionTarget, status: "True"}]
            # The command was asked to end, and the job goes on.
            - action: Ignore
              onExitCodes: {containerName: job, operator: In, values: [4]}
            # The job has failed, or cannot be submitted.
            - action: FailJob
              onExitCodes: {containerName: job, operator: In, values: [1, 2]}
        template:
          metadata:
            labels: {{ include "ringtune.labels" . | nindent 14 }}
              app.kubernetes.io/component: coordinator
          spec:
            restartPolicy: Never
            {{- include "ringtune.pod" (dict "root" . "part" .Values.coordinator) | nindent 12 }}
            terminationGracePeriodSeconds: {{ add $leaving 25 }}
            initContainers:
              - {{ include "ringtune.coordinatorContainer" . | nindent 16 | trim }}
                restartPolicy: Always
              - {{ include "ringtune.joinContainer" . | nindent 16 | trim }}
                restartPolicy: Always
            containers:
              - name: job
                {{- include "ringtune.container" (dict "root" . "program" "coordinator") | nindent 16 }}
                command: [ringtune]
                args:
                  - submit
                  - /run/ringtune/job/job.toml
                  - --watch
                  # When the pod begins again, the coordinator knows the job by it.
                  - --request-id
                  - {{ $request }}
                  - --output-dir
                  - {{ if .Values.job.output.volume }}/srv/ringtune/output{{ else }}/var/lib/ringtune/output{{ end }}
                  {{- range .Values.job.options }}
                  - {{ . | quote }}
                  {{- end }}
                env:
                  - {name: RINGTUNE__STORAGE__STATE_DIR, value: /var/lib/ringtune/state}
                lifecycle:
                  preStop: {sleep: {seconds: {{ $leaving }}}}
                resources:
                  requests: {cpu: 100m, memory: 256Mi}
                  limits: {cpu: "1", memory: 1Gi}
                volumeMounts:
                  - {name: state, mountPath: /var/lib/ringtune}
                  - {name: tmp, mountPath: /tmp}
                  - {name: job, mountPath: /run/ringtune/job, readOnly: true}
                  {{- if .Values.job.output.volume }}
                  - {name: output, mountPath: /srv/ringtune/output}
                  {{- end }}
                  {{- with include "ringtune.readMounts" . | trim }}{{ . | nindent 18 }}{{ end }}
            volumes: {{ include "ringtune.coordinatorVolumes" . | nindent 14 }}
              - {name: state, persistentVolumeClaim: {claimName: {{ $name }}-state}}
              - {name: job, configMap: {name: {{ $name }}-job}}
              {{- with .Values.job.output.volume }}
              - name: output
                {{- toYaml . | nindent 16 }}
              {{- end }}
              {{- with include "ringtune.readVolumes" . | trim }}{{ . | nindent 14 }}{{ end }}
  - name: node
    replicas: 1
    template:
      {{- if eq .Values.job.kind "TrainJob" }}
      metadata:
        labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}
      {{- end }}
      spec:
        completionMode: Indexed
        parallelism: {{ include "ringtune.workerCount" . }}
        completions: {{ include "ringtune.workerCount" . }}
        backoffLimit: 50
        podReplacementPolicy: Failed
        podFailurePolicy:
          rules:
            - action: Ignore
              onPodConditions: [{type: DisruptionTarget, status: "True"}]
            # It was asked to end, and left its ring.
            - action: Ignore
              onExitCodes: {containerName: node, operator: In, values: [4]}
        template:
          metadata:
            labels: {{ include "ringtune.labels" . | nindent 14 }}
              app.kubernetes.io/component: worker
          spec:
            restartPolicy: Never
            {{- include "ringtune.workerPod" (dict "root" . "container" "node" "ownDisk" true "exitCode" 4) | nindent 12 }}
{{- end }}
