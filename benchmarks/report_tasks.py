"""Tables of the files in results/tasks/, for docs/results.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Rows = list[dict]


def head(*columns: str) -> list[str]:
    """The first two lines of a table."""
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def percent(row: dict) -> str:
    """Mean and spread in per cent."""
    spread = f" ± {100 * row['spread']:.1f}" if row["seeds"] > 1 else ""
    return f"{100 * row['mean']:.1f}{spread}"


def number(row: dict) -> str:
    """Mean and spread with as many decimals as the mean can use."""
    decimals = 1 if abs(row["mean"]) >= 10 else 3 if abs(row["mean"]) >= 0.1 else 4
    spread = f" ± {row['spread']:.{decimals}f}" if row["seeds"] > 1 else ""
    return f"{row['mean']:.{decimals}f}{spread}"


def pivot(
    rows: Rows,
    line: Callable[[dict], str],
    column: Callable[[dict], str],
    cell: Callable[[dict], str] = percent,
    corner: str = "method",
) -> list[str]:
    """A table with a line and a column for every value of the two functions, in the order of the rows."""
    lines, columns = (_ordered(map(key, rows)) for key in (line, column))
    cells = {(line(row), column(row)): cell(row) for row in rows}
    made = head(corner, *columns)
    return made + [f"| {name} | {' | '.join(cells.get((name, each), '') for each in columns)} |" for name in lines]


def _ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _text(lines: list[str]) -> str:
    return "\n".join([*lines, ""])


def _where(row: dict) -> str:
    return f"{row['network']}, {row['data']}"


def probe(rows: Rows) -> str:
    logistic, hinge = ([row for row in rows if row["loss"] == loss] for loss in ("logistic", "squared_hinge"))
    method = lambda row: row["method"]  # noqa: E731
    full = {_where(row): row["features"] for row in rows if row["method"] == "full Fisher vector"}
    sizes = "; ".join(f"{count:,} for {name}" for name, count in full.items())
    return _text([
        f"{_seeds(rows)} Test accuracy in per cent, logistic regression. The full Fisher vector has as many",
        f"features as the network has parameters: {sizes}.", "", *pivot(logistic, method, _where), "",
        "One-vs-rest with the squared hinge:", "", *pivot(hinge, method, _where),
    ])  # fmt: skip


def few_labels(rows: Rows) -> str:
    table = pivot(rows, lambda row: row["method"], lambda row: f"{row['labels']:,} labels")
    return _text([f"{_seeds(rows)} Test accuracy in per cent.", "", *table])


def distillation(rows: Rows) -> str:
    students = [row for row in rows if row.get("role") == "student"]
    teacher = next(row for row in rows if row.get("role") == "teacher")
    probes = [row for row in rows if row.get("role", "").startswith("probe")]
    alone = next(row["mean"] for row in students if row["method"] == "no teacher")
    lines = [
        f"{_seeds(students)} Test accuracy in per cent, WRN-10-1 ({students[0]['parameters']:,} parameters), taught by",
        f"WRN-16-2 ({teacher['parameters']:,} parameters, {100 * teacher['mean']:.1f} %).", "",
        *head("method", "test accuracy", "above no teacher"),
    ]  # fmt: skip
    for row in sorted(students, key=lambda row: -row["mean"]):
        gain = "" if row["method"] == "no teacher" else f"{100 * (row['mean'] - alone):+.1f}"
        lines.append(f"| {row['method']} | {percent(row)} | {gain} |")
    lines += ["", "A linear probe of the teacher's embedding, by the number of components:", ""]
    lines += head("k", *(str(row["features"]) for row in probes))
    lines.append(f"| test accuracy | {' | '.join(percent(row) for row in probes)} |")
    return _text(lines)


def inversion(rows: Rows) -> str:
    table = pivot(rows, lambda row: row["method"], lambda row: row["metric"], number)
    return _text([_seeds(rows), "", *table])


def spectrum(rows: Rows) -> str:
    shares = [row for row in rows if "state" in row]
    name = lambda row: f"{row['network']}, {row['state']}"  # noqa: E731
    metric = lambda row: row["metric"].replace("variance explained, ", "%, ")  # noqa: E731
    cell = lambda row: percent(row) if "k" in row or "shift" in row["metric"] else number(row)  # noqa: E731
    aligned = [row for row in rows if row["metric"].startswith("alignment")]
    own = [row for row in rows if row["metric"].startswith("accuracy")]
    worth = ", ".join(f"{row['method']} {percent(row)} %" for row in own)
    return _text([
        f"{_seeds(shares)} Test accuracy of the classifiers: {worth}.", "",
        *pivot(shares, name, metric, cell, "network"), "", *head("networks", "alignment (CKA)"),
        *(f"| {row['method']} | {number(row)} |" for row in aligned),
    ])  # fmt: skip


def ridge(rows: Rows) -> str:
    cell = lambda row: percent(row) if "accuracy" in row["metric"] else number(row)  # noqa: E731
    name = lambda row: f"{row['data'].removeprefix('mnist, ')}: {row['method']}"  # noqa: E731
    return _text([_seeds(rows), "", *pivot(rows, name, lambda row: row["metric"], cell)])


def outliers(rows: Rows) -> str:
    name = lambda row: row["method"] if row["network"] == "-" else f"{row['network']}: {row['method']}"  # noqa: E731
    lines = [_seeds(rows)]
    for data in _ordered(row["data"] for row in rows):
        chosen = [row for row in rows if row["data"] == data]
        lines += ["", f"{data}:", "", *pivot(chosen, name, lambda row: row["metric"], number, "score")]
    return _text(lines)


def neighbours(rows: Rows) -> str:
    near, far = ([row for row in rows if ("distance" in row["metric"]) == flag] for flag in (False, True))
    return _text([
        _seeds(rows), "", *pivot(near, lambda row: row["method"], lambda row: f"{row['network']}: {row['metric']}"), "",
        *head("data sets", far[0]["metric"]), *(f"| {row['method']} | {number(row)} |" for row in far),
    ])  # fmt: skip


def _seeds(rows: Rows) -> str:
    counts = sorted({row["seeds"] for row in rows})
    return f"Mean ± standard deviation over {' or '.join(map(str, counts))} seeds."


TASKS = {task.__name__: task for task in
         (probe, few_labels, distillation, inversion, spectrum, ridge, outliers, neighbours)}  # fmt: skip


def summary(pages: dict[str, Rows]) -> str:
    """A line a task, in short: the Fisher embedding, and what it is compared with."""

    def cells(task: str, names: dict[str, str], cell: Callable[[dict], str], **where: object) -> str:
        rows = {row["method"]: row for row in pages[task] if all(row.get(key) == value for key, value in where.items())}
        return ", ".join(f"{short} {cell(rows[name])}".strip() for short, name in names.items())

    def line(
        title: str, task: str, ours: str, others: dict[str, str], cell: Callable = percent, **where: object
    ) -> str:
        return f"| {title} | {cells(task, {'': ours}, cell, **where)} | {cells(task, others, cell, **where)} |"

    gan = {"network": "DCGAN", "data": "mnist"}
    controls = {"activations": "activations", "PCA": "PCA of the pixels, 128", "pixels": "pixels"}
    near = {"activations": "activations", "PCA": "PCA of the pixels, 64", "pixels": "pixels"}
    return _text([
        *head("task", "Fisher embedding", "beside it"),
        line("linear probe, DCGAN on MNIST, k = 128, %", "probe", "Fisher embedding, 128",
             {"full Fisher vector": "full Fisher vector", **controls}, loss="logistic", **gan),
        line("250 labels, basis from 60,000 images without labels, %", "few_labels", "Fisher embedding, 128",
             {"activations": "activations of the critic", "PCA": "PCA of the pixels, 128", "pixels": "pixels"},
             labels=250),
        line("ten neighbours of the same class, DCGAN on MNIST, k = 64, %", "neighbours", "Fisher embedding, 64", near,
             metric="precision of 10 neighbours", **gan),
        line("distillation, WRN-16-2 to WRN-10-1, CIFAR-10 at 16 x 16, %", "distillation", "NFKD",
             {"no teacher": "no teacher", "KD": "KD", "FitNet": "FitNet"}, role="student"),
        line("real digits through the inverted GAN keep their class, %", "inversion", "Fisher embedding, 100",
             {"from activations": "critic's activations", "from pixels": "pixels"},
             metric="same class under LeNet-5, real images"),
        line("MNIST against Fashion-MNIST, LeNet-5, AUROC of the share outside the top 64", "outliers",
             "outside the top 64, share",
             {"maximum softmax": "maximum softmax", "free energy": "free energy"}, number, metric="AUROC",
             network="LeNet-5"),
    ])  # fmt: skip
