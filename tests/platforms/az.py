#!/usr/bin/env python3
"""Plays Azure's command for the life of one cluster. AZ_STATE names the file that has what is there; AZ_LOGGED_OUT: nobody is
logged in. What it answers is as the documentation of `az` shows it: no call was ever made to Azure itself."""

import json
import os
import re
import sys
from pathlib import Path

STATE = Path(os.environ["AZ_STATE"])
TYPES = {"Standard_D16s_v6": 16, "Standard_D2s_v6": 2, "Standard_D64s_v6": 64}


def fail(code, text):
    sys.exit(f"ERROR: ({code}) {text}\nCode: {code}\nMessage: {text}")


def options(words):
    """The command, and its options: each with the words after it."""
    verb, found = [], {}
    for word in words:
        if word.startswith("--"):
            found[word] = []
        elif found:
            list(found.values())[-1].append(word)
        else:
            verb.append(word)
    return " ".join(verb), {name: " ".join(values) for name, values in found.items()}


def deployed(state, given):
    parameters = json.loads(Path(given["--parameters"].removeprefix("@")).read_text())["parameters"]
    template = Path(given["--template-file"])
    declared = re.findall(r"^param (\w+)", template.read_text(), re.MULTILINE)
    assert set(parameters) <= set(declared) and (template.parent / "machine.sh").is_file(), (parameters, declared)
    if state["vaults"]:
        return {"state": "Failed", "parameters": parameters, "looks": 0}
    return {"state": "Running", "parameters": parameters, "looks": 0}


def shown(deployment):
    # It takes a while.
    deployment["looks"] += 1
    if deployment["state"] == "Running" and deployment["looks"] > 2:
        deployment["state"] = "Succeeded"
    outputs = {"coordinator": "10.77.0.4", "coordinatorPublic": "203.0.113.9", "group": "workers", "storage": "rtstorage", "loginVault": "rt-login"}
    typed = {name: {"type": "String", "value": value} for name, value in outputs.items()}
    done = deployment["state"] == "Succeeded"
    return {"properties": {"provisioningState": deployment["state"], "parameters": deployment["parameters"], "outputs": typed if done else None}}


def answer(state, verb, given):
    group, deployment = state["group"], state["deployment"]
    if verb in ["group show", "deployment group show", "deployment group create"] and not group:
        fail("ResourceGroupNotFound", f"Resource group '{given.get('--name')}' could not be found.")
    match verb:
        case "group show":
            return group
        case "group create":
            key, value = given["--tags"].split("=")
            state["group"] = {"name": given["--name"], "location": given["--location"], "tags": {key: value}}
            return state["group"]
        case "group delete":
            state.update(group=None, deployment=None, packages=[], vaults=["rt-join", "rt-login"])
        case "group exists":
            return group is not None
        case "deployment group show":
            return shown(deployment) if deployment else fail("DeploymentNotFound", "Deployment 'ringtune' could not be found.")
        case "deployment group create":
            state["deployment"] = deployed(state, given)
        case "deployment operation group list":
            about = {"provisioningState": deployment["state"], "targetResource": {"resourceName": "workers", "resourceType": "Microsoft.Compute/virtualMachineScaleSets"}}
            if deployment["state"] == "Failed":
                about["statusMessage"] = {"error": {"code": "ConflictError", "message": "A vault with the same name already exists in deleted state."}}
            return [{"operationId": "1", "properties": about}]
        case "vm list-skus":
            capabilities = lambda count: [{"name": "vCPUs", "value": str(count)}, {"name": "CpuArchitectureType", "value": "x64"}]
            return [
                {"name": name, "family": "standardDsv6Family", "restrictions": [], "capabilities": capabilities(count)}
                for name, count in TYPES.items()
                if name == given["--size"]
            ]
        case "vm list-usage":
            return [{"name": {"value": "standardDsv6Family"}, "currentValue": "0", "limit": "100"}]
        case "ad signed-in-user show":
            return {"id": "11111111-2222-3333-4444-555555555555"}
        case "storage blob upload-batch" | "storage blob upload":
            # The right to do so does not count at once.
            state["tries"] += 1
            if state["tries"] == 1:
                fail("AuthorizationPermissionMismatch", "This request is not authorized to perform this operation using this permission.")
            state["packages"].append(given.get("--name", given.get("--pattern")))
        case "vmss list-instances":
            return [{"provisioningState": "Succeeded"}] * int(deployment["parameters"]["workers"]["value"])
        case "keyvault list-deleted":
            return [{"name": name, "properties": {"tags": {"ringtune": "toy"}}} for name in state["vaults"]]
        case "keyvault purge":
            state["vaults"].remove(given["--name"])
        case "resource list":
            return [{"id": "/group"}] if group else []
        case _:
            sys.exit(f"az: '{verb}' is misspelled or not recognized by the system.")


def main():
    if "AZ_LOGGED_OUT" in os.environ:
        sys.exit("ERROR: Please run 'az login' to setup account.")
    begin = {"group": None, "deployment": None, "packages": [], "vaults": [], "tries": 0}
    state = json.loads(STATE.read_text()) if STATE.exists() else begin
    try:
        said = answer(state, *options(sys.argv[1:]))
    finally:
        STATE.write_text(json.dumps(state))
    if said is not None:
        print(json.dumps(said))


main()
