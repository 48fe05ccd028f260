"""Tables as datasets: data frames, CSV and Parquet files, with columns for the target and perhaps for the agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from peermask.data.arrays import from_arrays
from peermask.data.dataset import TASKS, Dataset, Task, datasets
from peermask.data.folders import natural_order
from peermask.data.normalisation import Wish
from peermask.errors import DataError, nearest
from peermask.streams import stream

Column = NDArray[Any]
Name: TypeAlias = str | int  # of a column; numbers where a file had no header
READERS = {".csv": "read_csv", ".parquet": "read_parquet", ".pq": "read_parquet"}
MOST_WHOLE = 2.0**53  # float64 has all whole numbers below it
MOST_CLASSES = 1000  # different values of a target that is taken for labels


def from_dataframe(
    train: Any,
    test: Any = None,
    *,
    target: Name | Sequence[Name],
    agent: Name | None = None,
    features: Sequence[Name] | None = None,
    test_share: float = 0.2,
    task: Task = "classification",
    name: str = "table",
    normalise: Wish | None = None,
) -> Dataset:
    """Make a dataset from a data frame of pandas, or of a library with the same columns, such as polars.

    Args:
        train: Training samples, one a row.
        test: Test samples, with the same columns. If left out, `test_share` of every agent's rows, or of every label's
            if there are no agents. The same rows are always drawn.
        target: The column of the target; several for "multi-label", and perhaps for "regression". Labels may be text
            or numbers.
        agent: The column that says which agent a row belongs to, for the partition "given". Agents may be text or
            numbers, and are numbered in their order.
        features: The columns to learn from, which must be numbers; all others if left out.
        test_share: The share of rows to test on, if `test` is left out.
        task: "classification", "multi-label" or "regression".
        name: What to call the dataset in tables and errors.
        normalise: As for `from_arrays`.

    Returns:
        A dataset for `run_experiment(config, dataset=...)`.

    Raises:
        DataError: A column is missing, holds text, or has rows without a value; the message names it.

    Examples:
        >>> import pandas, peermask
        >>> rows = pandas.DataFrame({"width": range(20), "height": range(20), "fruit": ["fig", "pear"] * 10})
        >>> data = peermask.from_dataframe(rows, target="fruit")
        >>> data.classes, data.shape, len(data.train), len(data.test)
        (('fig', 'pear'), (2,), 16, 4)
    """
    if task not in TASKS:
        raise DataError(f"{name} task is {task!r}; {nearest(str(task), TASKS)}")
    targets = list(target) if isinstance(target, Sequence) and not isinstance(target, str) else [target]
    if not targets or (task == "classification" and len(targets) > 1):
        raise DataError(f"{name} target is {target!r}; {task} needs {'one column' if targets else 'a column'}")
    frames = {name: train} if test is None else {name: train, f"{name} test": test}
    _check_frames(frames.values(), name)
    wanted = _features(train.columns, features, targets if agent is None else [*targets, agent], name)
    answers, classes = _targets(frames, targets, task, name)
    owners = None if agent is None else _ranks([_column(*part, agent) for part in frames.items()], name, agent)
    columns: list[list[Any]] = [[np.stack([_numbers(*part, c) for c in wanted], 1) for part in frames.items()], answers]
    columns += [owners or [None, None]]
    if test is None:
        groups = owners[0] if owners else answers[0] if task == "classification" else np.zeros(len(train), np.int64)
        drawn = _draw_test(groups, test_share, name)
        columns = [[None if part is None else part[rows] for rows in (~drawn, drawn)] for part, *_ in columns]
    (x_train, x_test), (y_train, y_test), (agent_train, agent_test) = columns
    return from_arrays(
        *(x_train, y_train, x_test, y_test, classes, name),
        kind="features",
        task=task,
        normalise=normalise,
        agent_train=agent_train,
        agent_test=agent_test,
    )


def _check_frames(frames: Iterable[Any], name: str) -> None:
    for frame, part in zip(frames, ("train", "test"), strict=False):
        if not hasattr(frame, "columns") or not hasattr(frame, "__getitem__") or not hasattr(frame, "__len__"):
            raise DataError(f"{name} {part} has type {type(frame).__name__}; give a data frame, such as one of pandas")
        if len(frame) == 0:
            raise DataError(f"{name} {part} has no samples")


def _features(
    columns: Iterable[Name], features: Sequence[Name] | None, special: Sequence[Name], name: str
) -> list[Name]:
    """The columns to learn from; `special` are target and agent."""
    wanted = [column for column in columns if column not in special] if features is None else list(features)
    if not wanted:
        raise DataError(f"{name} has no columns to learn from beside {', '.join(map(str, special))}")
    if overlap := [column for column in wanted if column in special]:
        raise DataError(f"{name} column {overlap[0]!r} is target or agent, and cannot be a feature too")
    return wanted


@datasets.register("table")
def table(
    *,
    path: Annotated[str, Field(min_length=1, description=".csv or .parquet file with training samples, one a row")],
    target: Annotated[
        str | list[str], Field(description="column of the target, text or numbers; several for other tasks")
    ],
    test: Annotated[str | None, Field(description="file with test samples; default: test_share of the rows")] = None,
    agent: Annotated[
        str | None, Field(description="column that says whose a row is, for partition 'given'; default: none")
    ] = None,
    features: Annotated[list[str] | None, Field(description="columns to learn from; default: all others")] = None,
    test_share: Annotated[float, Field(gt=0, lt=1, description="share of rows to test on, if test is not set")] = 0.2,
    task: Annotated[Task | None, Field(description="what targets are; by default classification")] = None,
    normalise: Annotated[
        Wish | None, Field(description="'none', 'statistics', {low, high} or {mean, std}; by default statistics")
    ] = None,
) -> Dataset:
    """Your own table from a CSV or Parquet file, with columns for the target and perhaps for the agent."""
    return from_dataframe(
        read_table(Path(path), "dataset.path"),
        None if test is None else read_table(Path(test), "dataset.test"),
        target=target,
        agent=agent,
        features=features,
        test_share=test_share,
        task=task or "classification",
        name=Path(path).stem,
        normalise=normalise,
    )


def read_table(file: Path, key: str) -> Any:
    """Read a CSV or Parquet file as a data frame."""
    if file.is_dir():
        raise DataError(f"{key} {file} is a folder; name a file in it")
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{key} {file} is neither .csv nor .parquet; convert it, or use from_dataframe in Python")
    if not file.is_file():
        raise DataError(f"{key} {file} does not exist")
    try:
        import pandas  # optional

        return getattr(pandas, reader)(file)
    except ImportError as error:
        raise DataError(
            f"reading {file} needs pandas, and pyarrow for Parquet; install them with: pip install 'peermask[table]'"
        ) from error
    except (OSError, ValueError) as error:  # also what pyarrow and the parser raise
        raise DataError(f"{key} {file} cannot be read: {str(error).partition(chr(10))[0]}") from error


def _column(name: str, frame: Any, column: Name) -> Column:
    """Return a column without missing values: numbers, or text."""
    if column not in frame.columns:
        raise DataError(f"{name} has no column {column!r}; {nearest(str(column), [str(c) for c in frame.columns])}")
    series = frame[column]
    if getattr(series, "ndim", 1) != 1:
        raise DataError(f"{name} has several columns {column!r}; rename them")
    missing = np.asarray(series.isna() if hasattr(series, "isna") else series.is_null())
    if missing.any():
        row = int(missing.argmax())
        raise DataError(f"{name} column {column!r} has no value in row {row}; fill or remove {missing.sum()} such rows")
    values = np.asarray(series)
    return values if values.dtype.kind in "buif" else np.array([str(value) for value in values], dtype=object)


def _numbers(name: str, frame: Any, column: Name, remedy: str = "leave it out, or") -> Column:
    values = _column(name, frame, column)
    if values.dtype == object:
        row = next((row for row, value in enumerate(values) if not _is_number(value)), 0)
        raise DataError(
            f"{name} column {column!r} holds text such as {values[row]!r} in row {row}; {remedy} make numbers of it "
            "(pandas.get_dummies)"
        )
    return values.astype(np.float64)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _targets(
    frames: Mapping[str, Any], targets: Sequence[Name], task: Task, name: str
) -> tuple[list[Column], list[str] | None]:
    """Targets of each frame, and names of classes or outputs."""
    if task != "classification":
        remedy = f"{task} needs numbers: set task = 'classification', or"
        answers = [np.stack([_numbers(*part, c, remedy) for c in targets], 1) for part in frames.items()]
        return answers, [*map(str, targets)]
    columns = [_column(*part, targets[0]) for part in frames.items()]
    whole = np.concatenate(columns)
    if whole.dtype.kind == "f" and ((whole != np.floor(whole)) | (np.abs(whole) >= MOST_WHOLE)).any():
        raise DataError(
            f"{name} column {targets[0]!r} holds fractions, not labels, or infinity; is it task = 'regression'?"
        )
    columns = _without_fractions(columns)
    names = _names(columns)
    if len(names) > MOST_CLASSES:
        raise DataError(
            f"{name} column {targets[0]!r} has {len(names)} different values; at most {MOST_CLASSES} labels"
        )
    return _places(columns, names), names


def _ranks(columns: Sequence[Column], name: str, agent: Name) -> list[Column]:
    """Agents as whole numbers from 0, in the order of those that have training samples."""
    columns = _without_fractions(columns)
    names = _names(columns[:1])
    for column in columns[1:]:
        if stranger := next((str(value) for value in column if str(value) not in names), None):
            raise DataError(f"{name} column {agent!r}: agent {stranger!r} has test rows but no training rows")
    return _places(columns, names)


def _without_fractions(columns: Sequence[Column]) -> list[Column]:
    """Whole numbers as integers: a column of them is float in one file and integer in another."""

    def is_whole(column: Column) -> bool:
        return column.dtype.kind == "f" and bool(
            (column == np.floor(column)).all() & (np.abs(column) < MOST_WHOLE).all()
        )

    return [column.astype(np.int64) if is_whole(column) else column for column in columns]


def _names(columns: Sequence[Column]) -> list[str]:
    return sorted({str(value) for column in columns for value in column}, key=natural_order)


def _places(columns: Sequence[Column], names: Sequence[str]) -> list[Column]:
    place = {value: number for number, value in enumerate(names)}
    return [np.array([place[str(value)] for value in column], np.int64) for column in columns]


def _draw_test(groups: Column, share: float, name: str) -> NDArray[np.bool_]:
    """[n]: which rows are tested on; of every group with two rows or more at least one, and never all."""
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise DataError(f"{name} test_share is {share!r}; it must be above 0 and below 1")
    drawn, draw = np.zeros(len(groups), bool), stream(0, "table-test")  # of no run: all seeds have the same test rows
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        drawn[rows[draw.permutation(len(rows))[:count]]] = True
    return drawn
