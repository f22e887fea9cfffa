#!/usr/bin/env python3
"""Says which tests took longest, and what each binary took in all: deploy/slowest.py JUNIT…

Reads the files that nextest writes (.config/nextest.toml). A file that is missing is a run that did not come so far.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree

MOST = 20


def main() -> None:
    for name in sys.argv[1:]:
        file = pathlib.Path(name)
        if not file.is_file():
            continue
        tests = []
        binaries = []
        for suite in ElementTree.parse(file).getroot().iter("testsuite"):
            times = [(float(test.get("time", 0)), test.get("name", "")) for test in suite.iter("testcase")]
            binaries.append((sum(time for time, _ in times), len(times), suite.get("name", "")))
            tests += [(time, f"{suite.get('name')} {test}") for time, test in times]
        print(f"\n{file.parent.name}: the slowest of {len(tests)} tests")
        for time, test in sorted(tests, reverse=True)[:MOST]:
            print(f"{time:8.1f} s  {test}")
        print(f"\n{file.parent.name}: all tests of a binary, {sum(time for time, _, _ in binaries):.0f} s")
        for time, count, binary in sorted(binaries, reverse=True):
            print(f"{time:8.1f} s {count:5}  {binary}")


main()
