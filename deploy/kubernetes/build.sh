#!/usr/bin/env bash
# Makes the plain manifests of this folder from the Helm chart: `make manifests`. Needs helm.
#
#     build.sh [FOLDER]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="${1:-$here}"
command -v helm >/dev/null || {
    echo "build.sh: error: helm is not in PATH: https://helm.sh/docs/intro/install" >&2
    exit 1
}

# What Helm alone needs is left out.
render() {
    local file="$folder/$1" name="$2"
    shift 2
    {
        sed 's/^/# /; s/ *$//' <<<"$about"
        helm template "$name" "$here/../helm/ringtune" --namespace ringtune \
            --set image.registry=registry.example/ringtune "$@" 2>/dev/null |
            sed -E '/^# Source: |managed-by: Helm|helm\.sh\//d; s/ +$//'
    } >"$file"
}
job=(--set-file "job.toml=$here/dicoo.toml"
    --set models.volume.persistentVolumeClaim.claimName=models --set data.volume.persistentVolumeClaim.claimName=pictures)

about='A coordinator and two workers, in the namespace "ringtune": docs/kubernetes.md.
Made from deploy/helm/ringtune by deploy/kubernetes/build.sh. Replace registry.example/ringtune, and look at resources:
    kubectl create namespace ringtune
    kubectl apply -n ringtune -f cluster.yaml'
render cluster.yaml ringtune

about='One job on two workers as a JobSet (jobset.sigs.k8s.io), in the namespace "ringtune": docs/kubernetes.md.
Made from deploy/helm/ringtune by deploy/kubernetes/build.sh. Replace registry.example/ringtune, the job, its volumes, and
look at resources. For Kueue add the label kueue.x-k8s.io/queue-name to the JobSet:
    kubectl apply -n ringtune -f jobset.yaml
    kubectl logs -n ringtune -f job/dicoo-coordinator-0 -c job'
render jobset.yaml dicoo "${job[@]}"

about='One job on two workers as a TrainJob (Kubeflow Trainer 2), in the namespace "ringtune": docs/kubernetes.md.
Made from deploy/helm/ringtune by deploy/kubernetes/build.sh. Replace registry.example/ringtune, the job, its volumes, and
look at resources. For Kueue add the label kueue.x-k8s.io/queue-name to the TrainJob:
    kubectl apply -n ringtune -f trainjob.yaml
    kubectl logs -n ringtune -f job/dicoo-coordinator-0 -c job'
render trainjob.yaml dicoo "${job[@]}" --set job.kind=TrainJob
