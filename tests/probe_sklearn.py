"""`smallworld probe` against scikit-learn's LogisticRegression: solver='liblinear', and of more than
two classes multinomial.

    /usr/bin/python3 tests/probe_sklearn.py BUILD/smallworld

On features of several kinds C and the errors are recomputed from the files the program wrote, and
the objective of its weights is compared with that of scikit-learn's. Exits with 1 where one differs, after listing them all, and with 77, which ctest
counts as skipped, where scikit-learn is missing.
"""

import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

try:
    import numpy
    import sklearn
    from sklearn.linear_model import LogisticRegression
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TOLERANCE = 1e-4  # relative, of the objective
COSTS = [2.0**k for k in range(-8, 5)]

# documents, units, how the units are changed
KINDS = {
    "like cell states": (400, 60, lambda x: numpy.tanh(x)),
    "more units than documents": (200, 300, lambda x: numpy.tanh(x)),
    "scales from 0.003 to 300": (400, 40, lambda x: x * numpy.geomspace(3e-3, 3e2, x.shape[1])),
    "means far from 0": (400, 40, lambda x: x + numpy.linspace(-10, 10, x.shape[1])),
    "almost collinear": (400, 40, lambda x: x + 30 * x[:, :1]),
}


def make(random, documents, units, change):
    """Three sets of features that share a few directions, one of which tells the labels."""
    mix, direction = random.normal(size=(8, units)), random.normal(size=8)
    sets = []
    for count in (documents, documents // 2, documents // 2):
        latent = random.normal(size=(count, 8))
        labels = latent @ direction + random.normal(size=count) > 1.5  # a fifth to a third
        noise = 0.7 * random.normal(size=(count, units))
        sets.append((change(0.4 * latent @ mix + noise).astype("float32"), labels.astype("int32")))
    return sets


def write(prefix, features, labels):
    numpy.save(f"{prefix}.npy", features)
    numpy.save(f"{prefix}.labels.npy", labels)


def balance(labels):
    """The weight of each row by its class, as class_weight="balanced" has it."""
    return (len(labels) / 2 / numpy.bincount(labels))[labels]


def objective(features, labels, weights, cost, each):
    margins = features @ weights[:-1] + weights[-1]
    return cost * (each * numpy.logaddexp(0, margins * (1 - 2 * labels))).sum() + weights @ weights / 2


def fit(features, labels, cost, balanced):
    """scikit-learn's weights, the intercept last."""
    model = LogisticRegression(penalty="l2", C=cost, solver="liblinear", tol=1e-7,
                               max_iter=20000, random_state=0, class_weight="balanced" if balanced else None).fit(features, labels)
    return numpy.append(model.coef_[0], model.intercept_[0])


def run(program, folder, options):
    command = [program, "probe", "--train", f"{folder}/train", "--test", f"{folder}/test", "--json",
               "--out", f"{folder}/out", "--device", "cpu", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(program, folder, sets, valid, balanced):
    """Yields a line for each difference."""
    for name, (features, labels) in zip(("train", "test", "valid"), sets):
        write(folder / name, features, labels)
    options = ["--class-weight", "balanced"] * balanced
    result = run(program, folder, options + ["--valid", f"{folder}/valid"] * valid)
    weights = numpy.load(folder / "out.weights.npy")
    predictions = numpy.load(folder / "out.predictions.npy")
    (train, labels), (test, test_labels), (held, held_labels) = sets
    train, test, held = (part.astype("float64") for part in (train, test, held))
    cost = result["C"]

    # The files agree with the printed numbers.
    said = test @ weights[:-1] + weights[-1] > 0
    if (said != predictions).mean() > 0.01:
        yield "predictions do not follow from the weights"
    if abs(100 * (predictions != test_labels).mean() - result["error"]) > 1e-9:
        yield f"error: {result['error']}"
    if numpy.count_nonzero(weights[:-1]) != result["nonzero"]:
        yield f"nonzero: {result['nonzero']}"
    sizes = numpy.abs(weights[:-1]) * train.std(0)
    top = numpy.sort(sizes)[::-1][:len(result["top_units"])]
    if not numpy.allclose(sizes[result["top_units"]], top, rtol=1e-6):
        yield f"top_units: {result['top_units']}"

    # The objective.
    each = balance(labels) if balanced else numpy.ones(len(labels))
    ours = objective(train, labels, weights, cost, each)
    fits = {c: fit(train, labels, c, balanced) for c in (COSTS if valid else [cost])}
    theirs_weights = fits[cost]
    theirs = objective(train, labels, theirs_weights, cost, each)
    if ours > theirs * (1 + TOLERANCE):
        yield f"objective at C = {cost}: {ours}, scikit-learn has {theirs}"
    if abs(result["objective"] / ours - 1) > 1e-5:
        yield f"objective: printed {result['objective']}, the weights give {ours}"
    bound = result["objective"] * (1 - result["gap"])  # no objective is lower, except by rounding
    if result["gap"] < -1e-5 or theirs < bound * (1 - 1e-5):
        yield f"gap: {result['gap']}, scikit-learn has {theirs}"
    their_error = 100 * ((test @ theirs_weights[:-1] + theirs_weights[-1] > 0) != test_labels).mean()
    if abs(their_error - result["error"]) > 100 * 2 / len(test):
        yield f"error: {result['error']}, scikit-learn has {their_error}"

    # The choice of C is right to within two validation documents.
    if valid:
        weigh = (len(labels) / 2 / numpy.bincount(labels))[held_labels] if balanced else numpy.ones(len(held))
        errors = [100 * numpy.average((held @ w[:-1] + w[-1] > 0) != held_labels, weights=weigh)
                  for w in fits.values()]
        slack = 100 * 2 / len(held)
        if abs(errors[COSTS.index(cost)] - result["valid_error"]) > slack:
            yield f"valid_error: {result['valid_error']}, scikit-learn has {errors} for each C"
        if result["valid_error"] > min(errors) + slack:
            yield f"C = {cost}: scikit-learn has {errors} for each C"


def compare_classes(program, folder, random, classes):
    """Yields a line for each difference of a probe of several classes, some rare."""
    mix, direction = random.normal(size=(8, 40)), random.normal(size=(8, classes))
    sets = []
    for count in (600, 300):
        latent = random.normal(size=(count, 8))
        labels = (latent @ direction - 0.5 * numpy.arange(classes)
                  + random.gumbel(size=(count, classes))).argmax(1)
        features = numpy.tanh(0.4 * latent @ mix + 0.7 * random.normal(size=(count, 40)))
        sets.append((features.astype("float32"), labels.astype("int32")))
    for name, (features, labels) in zip(("train", "test"), sets):
        write(folder / name, features, labels)
    result = run(program, folder, [])
    weights = numpy.load(folder / "out.weights.npy")
    (train, labels), (test, test_labels) = sets
    present = numpy.unique(labels)
    ones = lambda x: numpy.hstack([x, numpy.ones((len(x), 1))]).astype("float64")
    theirs = LogisticRegression(C=result["C"], fit_intercept=False, tol=1e-9,
                                max_iter=20000).fit(ones(train), labels).coef_

    def objective_of(w):
        z = ones(train) @ w.T
        own = z[numpy.arange(len(z)), numpy.searchsorted(present, labels)]
        return result["C"] * (numpy.logaddexp.reduce(z, axis=1) - own).sum() + (w * w).sum() / 2
    ours, best = objective_of(weights), objective_of(theirs)
    if ours > best * (1 + TOLERANCE) or abs(result["objective"] / ours - 1) > 1e-5:
        yield f"objective: {ours}, printed {result['objective']}, scikit-learn has {best}"
    if result["gap"] < -1e-5 or best < result["objective"] * (1 - result["gap"]) * (1 - 1e-5):
        yield f"gap: {result['gap']}, scikit-learn has {best}"
    if numpy.abs(weights - theirs).max() > 0.02 * numpy.abs(theirs).max():
        yield f"weights differ by {numpy.abs(weights - theirs).max()}"
    said = present[(ones(test) @ weights.T).argmax(1)]
    if abs(100 * (said != test_labels).mean() - result["error"]) > 1e-9:
        yield f"error: {result['error']}"


def check_refusals(program, folder):
    """Yields each call that was not refused in one line with the right status."""
    write(folder / "train", numpy.eye(4, dtype="float32"), numpy.array([0, 1, 0, 1], "int32"))
    numbers = numpy.eye(4, dtype="float32")
    numbers[2, 1] = numpy.inf
    write(folder / "test", numbers, numpy.array([0, 1, 0, 1], "int32"))
    train, test = ["--train", f"{folder}/train"], ["--test", f"{folder}/test"]
    cases = [
        (train, 2, "expected --test PREFIX"),
        (test, 2, "expected --train PREFIX"),
        (train + test + ["more"], 2, "unexpected argument 'more'"),
        (train + test + ["--penalty", "l1"], 2, "unrecognized option '--penalty'"),
        (train + test + ["--seed", "-1"], 2, "--seed"),
        (train + test + ["--device", "tpu"], 2, "--device"),
        (train + test, 1, f"{folder}/test.npy: not a finite number in row 2, unit 1"),
        (train + ["--test", f"{folder}/none"], 1, f"{folder}/none.npy"),
    ]
    for options, status, message in cases:
        done = subprocess.run([program, "probe", *options], capture_output=True, text=True)
        lines = done.stderr.splitlines()
        if done.returncode != status or done.stdout or not lines or message not in lines[0]:
            yield f"{options}: exit status {done.returncode}: {done.stdout}{done.stderr}"
        elif status == 1 and len(lines) > 1:  # a usage error also points to --help
            yield f"{options}: {done.stderr}"


def main():
    warnings.simplefilter("ignore")
    random = numpy.random.default_rng(1)
    compared = failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, how in KINDS.items():
            sets = make(random, *how)
            # without --valid the split decides
            for valid, balanced in ((True, False), (False, False), (True, True), (False, True)):
                compared += 1
                for what in compare(sys.argv[1], folder, sets, valid, balanced):
                    failed += 1
                    print(f"{kind}{', split' * (not valid)}{', balanced' * balanced}: {what}")
        for classes in 3, 4, 12:
            compared += 1
            for what in compare_classes(sys.argv[1], folder, random, classes):
                failed += 1
                print(f"{classes} classes: {what}")
        for what in check_refusals(sys.argv[1], folder):
            failed += 1
            print(what)
    print(f"{compared} probes compared with scikit-learn {sklearn.__version__}, {failed} differences")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
