"""`python -m benchmarks.detection TABLE DATA`: the detector beside others, one table a command.

tabular   ten or so labeled sets (.npz with X and y, 1 is an anomaly) in a folder: half of the
          normal rows to learn from, against PyOD's detectors
contaminated  the same sets, a tenth of the training rows anomalies; with --all-normal, no normal
          rows are left out where anomalies are too few for a tenth; KNN and IForest beside
classes   CIFAR-10, one class as normal, against kNN, PCA and a VAE with the calibrated score
defects   squares and scratches planted into CIFAR-10 and SVHN images: where `explain` finds them,
          against PatchCore's way of comparing features, here those of random filters
alarms    false alarms on fresh normal rows, 300 to learn from
scoring   seconds for 1,000 images of 28x28, with 1,500 and 10,000 to compare with
size      200 color images of 224x224: time, memory, and where `explain` finds planted defects
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.timing import machine
from damc import AnomalyDetector
from damc.data import Images, load_images
from damc.paper.baselines import baseline_scores
from damc.randomness import global_seed

Array = NDArray[Any]
Rows = list[dict[str, Any]]

_TENTH = 9  # normal rows for an anomaly among the training rows


def others(seed: int, width: int) -> dict[str, Callable[[], Any]]:
    """PyOD's usual detectors with default parameters."""
    from pyod.models.auto_encoder import AutoEncoder
    from pyod.models.deep_svdd import DeepSVDD
    from pyod.models.ecod import ECOD
    from pyod.models.iforest import IForest
    from pyod.models.knn import KNN
    from pyod.models.lof import LOF
    from pyod.models.ocsvm import OCSVM

    return {
        "KNN": KNN,
        "LOF": LOF,
        "IForest": lambda: IForest(random_state=seed),
        "ECOD": ECOD,
        "OCSVM": OCSVM,
        "AutoEncoder": lambda: AutoEncoder(verbose=0, random_state=seed),
        "DeepSVDD": lambda: DeepSVDD(n_features=width, random_state=seed, verbose=0),
    }


def tabular(folder: Path, seeds: list[int], methods: list[str]) -> Rows:
    """Means over sets ± their standard deviation over seeds; PyOD's detectors get standardized
    columns."""
    found: dict[str, list[tuple[int, float, float, float]]] = {}
    for path, seed, train, _, test, labels in _splits(folder, seeds):
        makers = {"AnomalyDetector": lambda s=seed: AnomalyDetector(random_state=s)}
        makers |= others(seed, train.shape[1])
        mean, scale = train.mean(0), np.where(train.std(0) > 0, train.std(0), 1)
        for name, make in makers.items():
            if methods and name not in methods:
                continue
            a, b = train, test
            if name != "AnomalyDetector":
                a, b = (train - mean) / scale, (test - mean) / scale
            start = time.process_time()
            detector = make().fit(a)
            took = time.process_time() - start
            scores = detector.decision_function(b)
            area, precision = roc_auc_score(labels, scores), average_precision_score(labels, scores)
            found.setdefault(name, []).append((seed, area, precision, took))
        print(f"{path.stem}, seed {seed}", flush=True)
    return [
        {
            "detector": name,
            "AUROC": _over_seeds([(v[0], v[1]) for v in values]),
            "AP": _over_seeds([(v[0], v[2]) for v in values]),
            "fit seconds, mean": round(float(np.mean([v[3] for v in values])), 2),
            "fit seconds, most": round(float(np.max([v[3] for v in values])), 2),
        }
        for name, values in found.items()
    ]


def _over_seeds(values: list[tuple[int, float]]) -> str:
    """The mean, ± the standard deviation of each seed's mean if there are several."""
    means = [np.mean([v for s, v in values if s == seed]) for seed in {s for s, _ in values}]
    spread = f" ± {np.std(means, ddof=1):.3f}" if len(means) > 1 else ""
    return f"{np.mean(means):.4f}{spread}"


def contaminated(folder: Path, seeds: list[int], *, thin: bool = True) -> Rows:
    """A tenth of the training rows are anomalies; where those are few, fewer normal rows too, or,
    unless `thin`, less than a tenth."""
    rows: Rows = []
    for path, seed, train, odd, test, labels in _splits(folder, seeds, contaminate=True, thin=thin):
        mixed = np.concatenate([train, odd])

        def area(X: Array, share: float | None, seed=seed, test=test, labels=labels) -> float:
            detector = AnomalyDetector(contamination=share, random_state=seed).fit(X)
            return float(roc_auc_score(labels, detector.decision_function(test)))

        row = {"set": path.stem, "seed": seed, "clean": area(train, None)}
        row |= {"mixed": area(mixed, None), "contamination=0.1": area(mixed, 0.1)}
        for name in ("KNN", "IForest"):
            for kind, X in (("clean", train), ("mixed", mixed)):
                mean, scale = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1)
                other = others(seed, X.shape[1])[name]().fit((X - mean) / scale)
                scores = other.decision_function((test - mean) / scale)
                row[f"{name}, {kind}"] = float(roc_auc_score(labels, scores))
        rows.append(row)
    names = list(dict.fromkeys(row["set"] for row in rows))
    columns = [name for name in rows[0] if name not in ("set", "seed")]
    table: Rows = [
        {"set": name} | {c: _mean(r[c] for r in rows if r["set"] == name) for c in columns}
        for name in names
    ]
    return [*table, {"set": "mean"} | {c: _mean(r[c] for r in rows) for c in columns}]


def classes(root: Path, seeds: list[int], names: list[int], methods: list[str]) -> Rows:
    """AUROC on the first 5,000 test images; 1,000 or so images of training batch 1 are normal."""
    methods = methods or ["detector-fast", "knn", "pca", "vae-balanced", "vae-best"]
    train = load_images("cifar10", root=root, split="train")
    test = load_images("cifar10", root=root, split="test").subset(slice(5000))
    rows: Rows = []
    for seed in seeds:
        for c in names:
            assert train.labels is not None and test.labels is not None
            index = torch.nonzero(train.labels == c)[:, 0]
            sets = train.subset(index[:-200]), train.subset(index[-200:])
            odd = (test.labels != c).numpy()
            for method in methods:
                start = time.process_time()
                if method.startswith("vae-"):
                    scores = _vae(method.removeprefix("vae-"), *sets, test, seed)
                else:
                    scores = baseline_scores(method, *sets, test, seed)
                row = {"class": c, "seed": seed, "method": method}
                for kind, values in scores.items():
                    row[kind] = round(float(roc_auc_score(odd, values.numpy())), 3)
                rows.append(row | {"seconds": round(time.process_time() - start, 1)})
                print(rows[-1], flush=True)
    return rows


def _vae(quality: str, train: Images, normal: Images, test: Images, seed: int) -> dict[str, Any]:
    """The calibrated score of a VAE that learns as long as a detector of that quality."""
    x = np.concatenate([_array(each, torch.arange(len(each))) for each in (train, normal)])
    detector = AnomalyDetector(
        method="vae", quality=quality, score_kind="calibrated", random_state=seed
    ).fit(x)
    found = detector.decision_function(_array(test, torch.arange(len(test))))
    return {"calibrated": torch.from_numpy(found)}


def defects(root: Path, seeds: list[int], methods: list[str]) -> Rows:
    """Pixel AUROC of `explain` on 200 images with one defect each, 500 others to learn from; and
    AUROC of the scores against those images without the defect."""
    rows: Rows = []
    for name in ("cifar10", "svhn"):
        images = load_images(name, root=root, split="test")
        for seed in seeds:
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
            for method in methods or ["surprise", "random-patches"]:
                features = _random_filters(seed) if method == "random-patches" else None
                detector = AnomalyDetector(features=features, random_state=seed)
                detector.fit(_array(images, order[:500]))
                fresh = _array(images, order[500:700])
                plain = detector.decision_function(fresh)
                for kind in ("square", "scratch"):
                    x, masks = plant(fresh, kind, seed)
                    scores = np.concatenate([plain, detector.decision_function(x)])
                    figures = {
                        "pixel AUROC": roc_auc_score(
                            masks.ravel(), detector.explain(x)[:, 0].ravel()
                        ),
                        "image AUROC": roc_auc_score(np.repeat([0, 1], len(x)), scores),
                    }
                    row = {"images": name, "method": method, "defect": kind, "seed": seed}
                    rows.append(row | {k: round(float(v), 3) for k, v in figures.items()})
                    print(rows[-1], flush=True)
    return rows


def _random_filters(seed: int) -> torch.nn.Module:
    """Features without pretrained weights, for PatchCore's way of comparing them."""
    with global_seed(seed):
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 5, padding=2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(32, 32, 3, stride=2, padding=1),
            torch.nn.ReLU(),
        )


def plant(x: Array, kind: str, seed: int, scale: int = 1) -> tuple[Array, Array]:
    """Images ``(n, 3, h, w)`` in [-1, 1] with a defect of one random color each, and where.

    A square has 4 to 8 pixels a side; a scratch is a line of 12 to 20 pixels, one or two wide;
    all of it times `scale`.
    """
    random = np.random.default_rng(seed)
    x, masks = x.copy(), np.zeros((len(x), *x.shape[2:]), bool)
    h, w = x.shape[2:]
    for image, mask in zip(x, masks, strict=True):
        if kind == "square":
            side = scale * random.integers(4, 9)
            top, left = random.integers(h - side), random.integers(w - side)
            mask[top : top + side, left : left + side] = True
        else:
            angle, length = random.uniform(0, np.pi), scale * random.uniform(12, 20)
            cy, cx = (random.uniform(8 * scale, side - 8 * scale) for side in (h, w))
            wide = scale * random.integers(1, 3)
            for t in np.linspace(-length / 2, length / 2, 60 * scale):
                i, j = int(cy + t * np.sin(angle)), int(cx + t * np.cos(angle))
                mask[max(i, 0) : i + wide, max(j, 0) : j + wide] = True
        image[:, mask] = random.uniform(-1, 1, (3, 1))
    return x, masks


def alarms(seeds: list[int]) -> Rows:
    """The share of 5,000 fresh normal rows above the threshold, columns of unlike laws."""
    rates, inside = [], []
    for seed in range(20) if seeds == [0, 1, 2] else seeds:
        random = np.random.default_rng(seed)
        shared = random.normal(size=(5300, 1))
        parts = [random.exponential(size=(5300, 2)), random.uniform(size=(5300, 1))]
        X = np.concatenate([*parts, shared + 0.1 * random.normal(size=(5300, 2))], 1)
        detector = AnomalyDetector(random_state=seed).fit(X[:300])
        rates.append(float(detector.predict(X[300:]).mean()))
        low, high = detector.false_alarms_
        inside.append(low <= rates[-1] <= high)
    return [
        {
            "seeds": len(rates),
            "mean": round(float(np.mean(rates)), 4),
            "standard deviation": round(float(np.std(rates)), 4),
            "least": min(rates),
            "most": max(rates),
            "within false_alarms_": float(np.mean(inside)),
        }
    ]


def scoring(seeds: list[int]) -> Rows:
    """Smooth random gray images; the network learns for 10 iterations, which scores do not need."""
    g = torch.Generator().manual_seed(seeds[0])
    coarse = torch.rand(11_000, 1, 7, 7, generator=g)
    x = torch.nn.functional.interpolate(coarse, (28, 28), mode="bicubic").clamp(0, 1)[:, 0].numpy()
    rows: Rows = []
    for quality, count in (("fast", 1500), ("fast", 10_000), ("balanced", 1500)):
        iterations = None if quality == "fast" else 10
        detector = AnomalyDetector(quality=quality, iterations=iterations, random_state=0)
        detector.fit(x[1000 : 1000 + count])
        start = time.process_time()
        detector.decision_function(x[:1000])
        took = time.process_time() - start
        rows.append({"quality": quality, "images": count, "CPU seconds": round(took, 2)})
        print(rows[-1], flush=True)
    return rows


def size(seeds: list[int], quality: str) -> Rows:
    """Smooth random color images; the peak is that of the whole process."""
    g = torch.Generator().manual_seed(seeds[0])
    coarse = torch.rand(200, 3, 28, 28, generator=g)
    x = torch.nn.functional.interpolate(coarse, (224, 224), mode="bicubic").clamp(0, 1).numpy()
    start = time.process_time()
    detector = AnomalyDetector(quality=quality, random_state=0).fit(x)
    fitted = time.process_time()
    detector.decision_function(x[:50])
    scored = time.process_time()
    learner, found = detector.learner_, {}
    for kind in ("square", "scratch"):
        odd, masks = plant(2 * x[:20] - 1, kind, seeds[0], scale=3)
        maps = detector.explain((odd + 1) / 2)[:, 0]
        found[f"pixel AUROC, {kind}"] = round(float(roc_auc_score(masks.ravel(), maps.ravel())), 3)
    return [
        {
            "quality": quality,
            "fit, CPU seconds": round(fitted - start, 1),
            "50 scores": round(scored - fitted, 1),
            "parameters": 0 if learner is None else sum(p.numel() for p in learner.parameters()),
            "peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        }
        | found
    ]


def _splits(
    folder: Path, seeds: list[int], *, contaminate: bool = False, thin: bool = True
) -> Iterator[tuple[Path, int, Array, Array, Array, Array]]:
    """Every set and seed: normal rows to learn, anomalies to mix in, rows to score, labels."""
    for seed in seeds:
        for path in sorted(folder.glob("*.npz")):
            file = np.load(path)
            X, y = file["X"].astype(float), file["y"].astype(int)
            random = np.random.RandomState(seed)
            normal = random.permutation(np.flatnonzero(y == 0))
            odd = random.permutation(np.flatnonzero(y == 1))
            half, some = len(normal) // 2, 0
            train = normal[:half]
            if contaminate:
                some = min(len(odd) // 2, half // _TENTH)
                train = train[: _TENTH * some] if thin else train
            test = np.concatenate([normal[half:], odd[some:]])
            yield path, seed, X[train], X[odd[:some]], X[test], y[test]


def _array(images: Images, index: torch.Tensor) -> Array:
    return np.asarray(images.batch(index).numpy())


def _mean(values: Iterator[float]) -> float:
    return round(float(np.mean(list(values))), 4)


def main() -> None:
    """Prints a table and writes it as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("tabular", "contaminated", "classes", "defects", "alarms", "scoring", "size")
    parser.add_argument("table", choices=names)
    parser.add_argument("data", nargs="?", type=Path, help="folder of .npz sets, or of named data")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[],
        help="rows of `tabular`, `classes` or `defects`; all if none",
    )
    parser.add_argument("--classes", nargs="+", type=int, default=[0, 4, 9])
    parser.add_argument("--all-normal", action="store_true", help="see `contaminated`")
    parser.add_argument("--quality", default="fast", help="of `size`")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON")
    given = parser.parse_args()
    if given.data is None and given.table not in ("alarms", "scoring", "size"):
        parser.error(f"{given.table} needs the folder of its data")
    warnings.filterwarnings("ignore", module="pyod|sklearn")
    made: dict[str, Callable[[], Rows]] = {
        "tabular": lambda: tabular(given.data, given.seeds, given.methods),
        "contaminated": lambda: contaminated(given.data, given.seeds, thin=not given.all_normal),
        "classes": lambda: classes(given.data, given.seeds, given.classes, given.methods),
        "defects": lambda: defects(given.data, given.seeds, given.methods),
        "alarms": lambda: alarms(given.seeds),
        "scoring": lambda: scoring(given.seeds),
        "size": lambda: size(given.seeds, given.quality),
    }
    rows = made[given.table]()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / f"detection-{given.table}.json"
    file.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    print(f"written to {file}, measured on {machine()}")


if __name__ == "__main__":
    main()
