#!/usr/bin/env python3
"""Reads a Bicep template, for which there is no compiler here, and prints what is in it as JSON.

    bicep.py FILE

parameters: name and default; rights: who may do what, on what; rules: whom the security group lets in, on which ports;
names: what is named anywhere and declared nowhere.
"""

import json
import re
import sys
from pathlib import Path

from pycep import BicepParser


def accessed(value):
    """"a.b.c" of an access of properties."""
    if not isinstance(value, dict):
        return value
    operands = value["operator"]["operands"]
    return f"{accessed(operands['operand_1'])}.{accessed(operands['operand_2'])}"


def rights(resources):
    for resource in resources.values():
        if resource["type"] == "Microsoft.Authorization/roleAssignments":
            config = resource["config"]["properties"]
            role = config["roleDefinitionId"]["function"]["parameters"]["resource_name_1"]
            who = accessed(config["principalId"]).removesuffix(".properties.principalId")
            yield f"{who} {accessed(role).removeprefix('roles.')} {resource['config']['scope']}"


def rules(value):
    if isinstance(value, dict) and "access" in value:
        ports = value.get("destinationPortRanges") or [value["destinationPortRange"]]
        yield f"{value['access']} {value['sourceAddressPrefix']} {value['destinationAddressPrefix']} {' '.join(ports)}"
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from rules(inner)


def undeclared(text, parsed):
    """Names before a dot or in ${}, which are no parameter, variable, resource or function."""
    declared = {*parsed["parameters"], *parsed["variables"], *(name.split("__")[0] for name in parsed["resources"])}
    text = re.sub(r"//[^\n]*|@description\('[^']*'\)", "", text)
    text = re.sub(r"'(?:\$\{([^}]*)\}|[^'])*'", lambda found: " ".join(re.findall(r"\$\{([^}]*)\}", found[0])), text)
    return sorted({name for name in re.findall(r"(?<![\w.)@])([a-zA-Z]\w*)(?=\.)", text) if name not in declared})


def main():
    path = Path(sys.argv[1])
    parsed = BicepParser().parse(file_path=path)
    print(json.dumps({
        "parameters": {name: about.get("default") for name, about in parsed["parameters"].items()},
        "rights": sorted(rights(parsed["resources"])),
        "rules": sorted(rules(parsed["resources"]["rules"]["config"])),
        "names": undeclared(path.read_text(), parsed),
    }))


main()
