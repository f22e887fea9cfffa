"""What the timings share: programs run in turns, and tables of what they took.

Absolute times wander by a factor of two on shared machines, so every round runs each contender once, in turn, and the ratios
are those of medians and of minima over all rounds.
"""
import json
import os
import statistics
import subprocess
import sys


def run(command, environment):
    """The JSON objects that a program prints, a line each."""
    command = [str(word) for word in command]
    result = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"error: exit code {result.returncode} from {' '.join(command)}:\n{result.stdout}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def in_turns(runs, rounds, key, skipped):
    """Runs {name: (command, environment)} `rounds` times, each once a round. A program's times are `key` of its lines, but
    for the first `skipped`. Returns {name: all times} and {name: [lines of each round]}."""
    times, lines = {name: [] for name in runs}, {name: [] for name in runs}
    for number in range(1, rounds + 1):
        for name, (command, environment) in runs.items():
            rows = run(command, environment)
            taken = [row[key] for row in rows if key in row][skipped:]
            if not taken:
                sys.exit(f"error: no {key} after the first {skipped} from {' '.join(map(str, command))}")
            print(f"round {number}, {name}: {' '.join(f'{seconds:.3f}' for seconds in taken)}", file=sys.stderr, flush=True)
            times[name] += taken
            lines[name].append(rows)
    return times, lines


def ratios(ours, others):
    """By medians and by minima."""
    return statistics.median(ours) / statistics.median(others), min(ours) / min(others)


def print_table(times, baseline, columns=None, unit="s"):
    """Times of each contender, in `unit`, and their ratios to those of `baseline`; `columns`: {title: {name: text}}, more to
    show."""
    columns = columns or {}
    titles = "".join(f"{title:>9}" for title in columns)
    print(f"{'':24}{'median ' + unit:>10}{'min ' + unit:>9}{'max ' + unit:>9}{'count':>7}{titles}{'of ' + baseline:>14}{'by minima':>11}")
    for name, taken in times.items():
        by_median, by_minimum = ratios(taken, times[baseline])
        more = "".join(f"{column[name]:>9}" for column in columns.values())
        print(f"{name:24}{statistics.median(taken):10.3f}{min(taken):9.3f}{max(taken):9.3f}{len(taken):7}{more}"
              f"{by_median:14.3f}{by_minimum:11.3f}")


def judged(what, figure, bound, at_most=True):
    """One bound: a line for people, and an object for programs."""
    met = figure <= bound if at_most else figure >= bound
    words = f"at {'most' if at_most else 'least'} {bound:.3f}"
    print(f"{what:40}{figure:8.3f}   {words:16}{'met' if met else 'NOT MET'}")
    return {"what": what, "figure": figure, "bound": words, "met": met}


def write(file, report):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def add_precision(parser, more=""):
    """The option --precision."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        # Without these instructions our programs refuse bf16, and libtorch takes minutes for a step.
        best = "bf16" if "avx512_bf16" in file.read() else "fp32"
    parser.add_argument("--precision", choices=("bf16", "fp32"), default=best,
                        help=f"of all contenders; default: bf16 where the processor has it{more}")


def physical_cores():
    """One thread a physical core of those that this process may use, as a worker takes them."""
    cores = set()
    for processor in os.sched_getaffinity(0):
        try:
            with open(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list", encoding="utf-8") as file:
                cores.add(file.read().strip())
        except OSError:
            cores.add(str(processor))
    return len(cores)
