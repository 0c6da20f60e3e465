"""Every metric of `smallworld graph` against networkx's own, on the edges the program wrote.

    /usr/bin/python3 tests/graph_networkx.py BUILD/smallworld

Exits with 1 where a metric differs by more than 1e-9, after listing them all.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import needs

networkx = needs.module("networkx")

TOLERANCE = 1e-9

# The `model` section of each config. A block is 8 units, so 480 units are 60 nodes.
MODELS = {
    "dense": {"hidden": 160, "graph": "dense"},
    "random": {"hidden": 480, "graph": "random", "degree": 5},
    "random, almost complete": {"hidden": 160, "graph": "random", "density": 0.95},
    "random, in parts": {"hidden": 480, "graph": "random", "density": 0.025},
    "ring": {"hidden": 1040, "graph": "watts_strogatz", "degree": 4, "rewire": 0},
    "small world": {"hidden": 2400, "graph": "watts_strogatz", "degree": 12, "rewire": 0.1},
    "small world, by density": {"hidden": 800, "graph": "watts_strogatz", "density": 0.1,
                                "rewire": 0.5},
    "small world on a torus": {"hidden": 1152, "graph": "watts_strogatz_2d", "degree": 8,
                               "rewire": 0.1},
    "scale-free": {"hidden": 1600, "graph": "barabasi_albert", "degree": 6},
    "scale-free, by density": {"hidden": 800, "graph": "barabasi_albert", "density": 0.2},
    "core and periphery": {"hidden": 800, "graph": "core_periphery", "density": 0.3, "core": 0.3},
    "core and small-world periphery": {"hidden": 640, "graph": "core_periphery", "density": 0.2,
                                       "core": 0.2, "core_reads": 0.1, "periphery_reads": 0.4,
                                       "periphery": "watts_strogatz"},
    "deep": {"hidden": 480, "graph": "watts_strogatz", "degree": 6, "rewire": 0.3, "cell": "deep",
             "internal_steps": 3},
    "directed, in parts": {"hidden": 64, "graph": "file", "graph_file": "edges"},
}

# Two directed triangles with a one-way bridge between them, a one-way tail, and a node alone.
EDGES = "1 0\n2 1\n0 2\n3 2\n4 3\n5 4\n3 5\n6 5\n"


def run(program, folder, model, seed):
    """Returns the patterns of a config: the metrics that the program printed, and their edges."""
    text = folder / "text"
    text.write_text("some text\n" * 100)
    (folder / "edges").write_text(EDGES)
    if "graph_file" in model:
        model = model | {"graph_file": str(folder / model["graph_file"])}
    # JSON is YAML.
    config = folder / "config.yaml"
    config.write_text(json.dumps({"data": {"train": str(text)}, "model": {"block": 8} | model,
                                  "run": {"seed": seed}}))
    command = [program, "graph", str(config), "--json", "--edges", str(folder / "pattern")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    patterns = json.loads(done.stdout.splitlines()[-1])["patterns"]
    for number, metrics in enumerate(patterns):
        lines = (folder / f"pattern.{number}.txt").read_text().splitlines()
        yield metrics, [tuple(map(int, line.split())) for line in lines]


def measure(nodes, blocks):
    """The same metrics by networkx. An edge runs from input to output, like the signal."""
    signal = networkx.DiGraph()
    signal.add_nodes_from(range(nodes))
    signal.add_edges_from((i, o) for o, i in blocks if o != i)
    degrees = [degree for _, degree in signal.in_degree()]
    out_degrees = [degree for _, degree in signal.out_degree()]
    core = 1
    while core < nodes and len(signal.subgraph(range(core + 1)).edges) == core * (core + 1):
        core += 1
    lengths = [length for _, reached in networkx.all_pairs_shortest_path_length(signal)
               for length in reached.values()]  # a node has distance 0 to itself
    paths = [length for length in lengths if length > 0]
    if networkx.is_strongly_connected(signal):
        path_mean = networkx.average_shortest_path_length(signal)
        path_max = networkx.diameter(signal)
    else:
        path_mean = sum(paths) / len(paths)
        path_max = max(paths)
    return {
        "nodes": nodes,
        "blocks": nodes + signal.number_of_edges(),
        "density": (nodes + signal.number_of_edges()) / nodes**2,
        "degree_min": min(degrees),
        "degree_mean": sum(degrees) / nodes,
        "degree_max": max(degrees),
        "out_degree_min": min(out_degrees),
        "out_degree_max": max(out_degrees),
        "core": core,
        "clustering": networkx.average_clustering(signal.to_undirected()),
        "path_mean": path_mean,
        "path_max": path_max,
        "unreachable": 1 - len(paths) / (nodes * (nodes - 1)),
        "components": networkx.number_weakly_connected_components(signal),
        "reach": [sum(length <= step for length in lengths) / nodes**2
                  for step in range(1, min(path_max, 16) + 1)],
    }


def differs(ours, theirs):
    if isinstance(theirs, list):
        return len(ours) != len(theirs) or any(map(differs, ours, theirs))
    if None in (ours, theirs):
        return ours is not theirs
    return not abs(ours - theirs) <= TOLERANCE


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    failed = compared = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed, (name, model) in enumerate(MODELS.items()):
            for metrics, blocks in run(sys.argv[1], Path(folder), model, seed):
                nodes = model["hidden"] // 8
                selves = {(i, i) for i in range(nodes)}
                if len(set(blocks)) != len(blocks) or not selves <= set(blocks):
                    print(f"{name}: a block is written twice, or a self-block not at all")
                    failed += 1
                wanted = measure(nodes, blocks)
                if model["graph"] not in ("core_periphery", "file"):
                    wanted["core"] = None
                for key, expected in wanted.items():
                    compared += 1
                    if differs(metrics[key], expected):
                        print(f"{name}: {key}: {metrics[key]}, networkx has {expected}")
                        failed += 1
    print(f"{compared} metrics compared with networkx {networkx.__version__}, {failed} differ")
    return 1 if failed or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
