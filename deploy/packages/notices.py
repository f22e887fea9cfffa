#!/usr/bin/env python3
"""The licences of all that is linked into a program: notices.py PACKAGE [PACKAGE…] < cargo-metadata.json

Reads what `cargo metadata --format-version 1 --filter-platform TARGET` prints, follows the normal dependencies of the
named packages (those of build scripts and tests are in no program), and prints each licence text once, below the crates
that it belongs to. A crate without a text of its own has its licence's name; one without either is an error.
"""
import collections
import json
import pathlib
import re
import sys

FILES = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def closure(metadata, roots):
    """Ids of everything that the packages named `roots` link, without the workspace's own."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    own = set(metadata["workspace_members"])
    waiting = [id for id in own if packages[id]["name"] in roots]
    if len(waiting) != len(set(roots)):
        sys.exit(f"notices: error: the workspace has not all of {', '.join(roots)}")
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            is_macro = any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
            if normal and not is_macro and dependency["pkg"] not in seen:
                seen.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    return [packages[id] for id in seen - own]


def texts(package):
    """The licence files of a crate, in the order of their names."""
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(file for file in folder.iterdir() if file.is_file() and FILES.match(file.name))
    named = package.get("license_file")
    if named and folder / named not in files and (folder / named).is_file():
        files.append(folder / named)
    return [file.read_text(encoding="utf-8", errors="replace").strip() for file in files]


def main():
    roots = sys.argv[1:]
    if not roots:
        sys.exit(__doc__)
    users, names = collections.defaultdict(list), {}
    for package in closure(json.load(sys.stdin), roots):
        name = f"{package['name']} {package['version']}"
        licence = package.get("license")
        found = texts(package)
        if not found and not licence:
            sys.exit(f"notices: error: {name} names no licence")
        names[name] = licence or "see its text"
        for text in found:
            # The same text with other line breaks is the same text.
            users[" ".join(text.split())].append((name, text))
    print("Ringtune's programs contain the crates below; each is used under one of the licences that it names.\n")
    for name in sorted(names):
        print(f"  {name}: {names[name]}")
    for key in sorted(users, key=lambda key: sorted(users[key])[0][0]):
        print("\n" + "-" * 80)
        print("\n".join(sorted({name for name, _ in users[key]})) + "\n")
        print(users[key][0][1])


main()
