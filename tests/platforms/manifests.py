#!/usr/bin/env python3
"""Checks manifests as an API server would, as far as that is possible without one, and prints each as a line of JSON.

    manifests.py FILE...

What Kubernetes has is checked against the strict schemas of its two newest versions, with what admission of the level
"restricted" wants of pods; JobSet, TrainJob and TrainingRuntime by their published models, which drop what they do not know:
nothing may be lost on the way through them. Kinds of Prometheus' operator have no schema here; those below are let through.
"""

import functools
import json
import sys

import kubernetes_validate
import yaml
from kubernetes_validate import utils
from kubeflow_trainer_api import models

VERSIONS = ["1.36", "1.37"]
MODELS = {
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
}
WITHOUT_SCHEMA = ["ServiceMonitor", "ScrapeConfig", "PrometheusRule"]

# It reads 5 MB for each manifest otherwise.
utils.schema_contents = functools.cache(utils.schema_contents)


def lost(given, kept, path):
    """The first place at which a part of `given` is not in `kept`."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key not in (kept or {}):
                return f"{path}.{key}"
            found = lost(value, kept[key], f"{path}.{key}")
            if found:
                return found
    elif isinstance(given, list):
        if len(given) != len(kept or []):
            return path
        for number, value in enumerate(given):
            found = lost(value, kept[number], f"{path}[{number}]")
            if found:
                return found
    elif str(given) != str(kept):
        return path
    return None


def pods(value):
    """The pod specs anywhere in a manifest."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        else:
            for part in value.values():
                yield from pods(part)
    elif isinstance(value, list):
        for part in value:
            yield from pods(part)


def check_pod(pod):
    """What the level "restricted" wants. Source: the Pod Security Standards."""
    security = pod["securityContext"]
    assert security["runAsNonRoot"] and security["seccompProfile"]["type"] == "RuntimeDefault", security
    assert pod["automountServiceAccountToken"] is False, pod
    for container in pod["containers"] + pod.get("initContainers", []):
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["capabilities"]["drop"] == ["ALL"], own
        assert own["readOnlyRootFilesystem"], own
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        known = {volume["name"] for volume in pod["volumes"]} | {"state"}
        assert mounted <= known, f"{container['name']} mounts {mounted - known}"


def check(manifest):
    kind = manifest["kind"]
    if kind in MODELS:
        model = MODELS[kind].from_dict(manifest)
        place = lost(manifest, model.to_dict(), kind)
        assert place is None, f"{place} is unknown to {MODELS[kind].__name__}"
    elif kind not in WITHOUT_SCHEMA:
        for version in VERSIONS:
            kubernetes_validate.validate(manifest, version, strict=True)
    for pod in pods(manifest):
        check_pod(pod)


def main():
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            manifests = [manifest for manifest in yaml.safe_load_all(file) if manifest]
        assert manifests, f"{path} has no manifest"
        names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
        assert len(set(names)) == len(names), f"{path} has a name twice: {sorted(names)}"
        for manifest, name in zip(manifests, names):
            try:
                check(manifest)
            except Exception as error:
                print(f"{path}: {' '.join(name)}: {str(error).splitlines()[0]}", file=sys.stderr)
                sys.exit(1)
            print(json.dumps(manifest))


main()
