"""Inputs of any kind: what is taken, how it is normalised, and what is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from peermask.data import datasets, from_arrays, from_torch, share_out
from peermask.data.normalisation import FromRaw, Normalise, Range, Statistics, statistics_of
from peermask.data.partition import partitions
from peermask.errors import DataError
from peermask.registry import Options

TABLE = np.array([[0.0, 10.0], [2.0, 30.0], [4.0, 20.0], [6.0, 20.0]])
LABELS = np.array([0, 1, 0, 1])


def test_statistics_are_of_each_feature_of_the_training_data() -> None:
    made = from_arrays(TABLE, LABELS, TABLE + 100, LABELS)
    assert made.normalisation == Statistics(mean=(3.0, 20.0), std=(2.236068, 7.071068))
    seen = made.normalise(made.train.inputs)
    torch.testing.assert_close(seen[:, 0], torch.tensor([-3.0, -1.0, 1.0, 3.0]) / 5**0.5)
    assert float(made.normalise(made.test.inputs)[0, 0]) == pytest.approx(97 / 5**0.5)  # by the training data's


def test_statistics_of_series_and_images_are_of_each_channel() -> None:
    series = torch.tensor([[[0.0, 2.0], [5.0, 5.0]], [[4.0, 6.0], [5.0, 5.0]]])  # [2, C = 2, T = 2]
    found = statistics_of(series)
    assert found.mean == (3.0, 5.0)
    assert found.std == (2.236068, 1.0)  # a constant keeps its scale
    normalised = Normalise(found, 2)(series)
    assert normalised[:, 1].abs().max() == 0
    assert normalised.shape == series.shape


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ("none", [0.0, 10.0]),
        ({"low": 0.0, "high": 40.0}, [-1.0, -0.5]),
        ({"low": -10.0, "high": 10.0}, [0.0, 1.0]),
        ({"mean": [1.0], "std": [2.0]}, [-0.5, 4.5]),
        ({"mean": [0.0, 10.0], "std": [1.0, 5.0]}, [0.0, 0.0]),
    ],
)
def test_normalisation_can_be_said(wish: Any, expected: list[float]) -> None:
    made = from_arrays(TABLE, LABELS, TABLE, LABELS, normalise=wish)
    assert made.normalise(made.train.inputs)[0].tolist() == expected


def test_a_network_from_raw_inputs_gives_values_in_the_targets_units() -> None:
    whole = FromRaw(torch.nn.Identity(), Range(high=10.0), 1, Statistics(mean=(100.0,), std=(20.0,)))
    assert whole(torch.tensor([[5.0], [10.0]])).tolist() == [[100.0], [120.0]]


def test_images_of_any_range_say_how_they_are_normalised() -> None:
    photos = np.full((3, 2, 2), 4000, np.uint16)
    made = from_arrays(photos, LABELS[:3], photos, LABELS[:3], normalise=Range(high=4000))
    assert made.shape == (1, 2, 2)
    assert made.normalise(made.train.inputs).unique().tolist() == [1.0]


def test_tokens_and_their_vocabulary() -> None:
    tokens = np.array([[0, 3], [2, 1]])
    made = from_arrays(tokens, [0, 1], tokens, [0, 1], kind="tokens")
    assert (made.vocabulary, made.shape, made.train.inputs.dtype) == (4, (2,), torch.int64)
    assert torch.equal(made.normalise(made.train.inputs), made.train.inputs)
    assert from_arrays(tokens, [0, 1], tokens, [0, 1], kind="tokens", vocabulary=9).vocabulary == 9


def test_targets_of_every_task() -> None:
    several = from_arrays(TABLE, np.eye(4, 3, dtype=bool), TABLE, np.eye(4, 3, dtype=bool), task="multi-label")
    assert (several.classes, several.train.targets.shape) == (("0", "1", "2"), (4, 3))
    numbers = from_arrays(TABLE, TABLE[:, 0], TABLE, TABLE[:, 0], task="regression")
    assert numbers.target_scale == Statistics(mean=(3.0,), std=(2.236068,))
    scaled = numbers.scale_targets(numbers.train.targets)
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(numbers.unscale(scaled), numbers.train.targets)
    pairs = TensorDataset(torch.rand(4, 3), torch.rand(4, 2))
    assert from_torch(pairs, pairs, task="regression").classes == ("0", "1")


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"y_train": np.array([0, 1, 0, 10_000_000])},
        "label 10000000 among 3 different ones; number them from 0, or set classes",
    ),
    ({"x_train": np.where(TABLE == 30, np.nan, TABLE)}, r"x_train is nan in sample 1 at \[1\]"),
    ({"x_test": np.where(TABLE == 30, np.inf, TABLE)}, r"x_test is inf in sample 1 at \[1\]"),
    ({"x_train": TABLE * 1e300}, r"x_train is inf in sample 0 at \[1\]"),
    ({"x_train": TABLE.astype(int)}, "say kind = 'tokens' or kind = 'features'"),
    ({"kind": "tokens"}, "tokens are whole numbers"),
    ({"kind": "table"}, "kind is 'table'"),
    ({"task": "sorting"}, "task is 'sorting'"),
    ({"y_train": LABELS * 1.5}, "labels are whole numbers .* or is it task = 'regression'?"),
    ({"y_train": np.eye(4, dtype=int)}, "labels are whole numbers .* or is it task = 'multi-label'?"),
    ({"task": "multi-label"}, r"several labels are \[n, labels\]"),
    ({"task": "multi-label", "y_train": np.full((4, 2), 2), "y_test": np.eye(4, 2)}, "several labels are 0 or 1 each"),
    ({"task": "regression", "y_train": np.array([0.0, np.nan, 1.0, 2.0])}, r"y_train is nan in sample 1"),
    ({"task": "regression", "y_train": np.zeros((4, 2, 2))}, "a regression has numbers"),
    ({"task": "regression", "y_test": np.zeros((4, 2))}, r"regression with 1 outputs needs float32 \[n, 1\]"),
    ({"normalise": "yes"}, "normalise is 'yes'"),
    ({"normalise": {"low": 3, "high": 3}}, "normalise is"),
    ({"normalise": {"mean": [1, 2, 3], "std": [1, 2, 3]}}, "3 means, but there are 2 features"),
    ({"x_train": TABLE[:, :1]}, "train inputs of shape"),
    ({"agent_train": np.array([0, 1])}, "4 samples but agents of shape"),
    ({"agent_train": np.array([0.5] * 4)}, "agents are whole numbers"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_one_line(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"x_train": TABLE, "y_train": LABELS, "x_test": TABLE, "y_test": LABELS, "name": "mine"}
    with pytest.raises(DataError, match=message) as caught:
        from_arrays(**(given | change))
    assert "\n" not in str(caught.value)
    assert "mine" in str(caught.value)


def test_tokens_outside_the_vocabulary_are_named() -> None:
    tokens = np.array([[0, 3], [2, 1]])
    with pytest.raises(DataError, match=r"token 3 in sample 0 at \[1\]; a vocabulary of 3 has 0 to 2"):
        from_arrays(tokens, [0, 1], tokens, [0, 1], kind="tokens", vocabulary=3)
    with pytest.raises(DataError, match="a token 9999 among 5 different ones; number them from 0, or set vocabulary"):
        from_arrays(tokens, [0, 1], np.array([[0, 9999], [1, 2]]), [0, 1], kind="tokens")
    with pytest.raises(DataError, match="token -1 in sample 1"):
        from_arrays(tokens - [[0], [2]], [0, 1], tokens, [0, 1], kind="tokens", vocabulary=4)


def test_a_loader_is_not_a_dataset() -> None:
    loader: Any = DataLoader(TensorDataset(torch.rand(4, 3), torch.arange(4)))
    with pytest.raises(DataError, match=r"is a DataLoader; give the data set it loads: loader\.dataset"):
        from_torch(loader, loader)


def test_an_npz_file_says_all_this_too(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    arrays = {"x_train": TABLE, "y_train": TABLE[:, 1], "x_test": TABLE, "y_test": TABLE[:, 1]}
    np.savez(path, **arrays, agent_train=LABELS, agent_test=LABELS)  # type: ignore[arg-type]
    options = datasets["npz"].options.model_validate(
        {"path": str(path), "task": "regression", "normalise": {"mean": [3], "std": [2]}}
    )
    made = datasets["npz"].make(**dict(options))
    assert (made.task, made.normalisation) == ("regression", Statistics(mean=(3.0,), std=(2.0,)))
    assert made.test.agents is not None
    assert made.test.agents.tolist() == LABELS.tolist()


def shared(data: Any, agents: int, partition: str = "given") -> Any:
    return share_out(data, partition, partitions[partition].options(), agents, seed=0, validation=0.0)


def test_agents_hold_what_the_data_says() -> None:
    data = from_arrays(TABLE, LABELS, TABLE, LABELS, agent_train=[1, 0, 1, 2], agent_test=[2, 2, 0, 1])
    assert [own.train.tolist() for own in shared(data, 3)] == [[1], [0, 2], [3]]
    assert [own.test.tolist() for own in shared(data, 3)] == [[2], [3], [0, 1]]
    without = from_arrays(TABLE, LABELS, TABLE, LABELS, agent_train=[1, 0, 1, 0])
    assert [own.test.tolist() for own in shared(without, 2)] == [[1, 3], [0, 2]]  # by label


@pytest.mark.parametrize(
    ("given", "agents", "message"),
    [
        ({}, 2, "does not say which agent a sample belongs to"),
        ({"agent_train": [0, 0, 1, 1]}, 3, "agents is 3, but the data has 2 agents, 0 to 1; .* set agents = 2"),
        ({"agent_train": [0, 0, 5, 5]}, 2, "has 2 agents, 0 to 5; number them from 0"),
        ({"agent_train": [0, 0, 1, 1], "agent_test": [0] * 4}, 2, "agent 1 has no test samples"),
    ],
)
def test_agents_that_do_not_fit_are_refused(given: dict[str, Any], agents: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        shared(from_arrays(TABLE, LABELS, TABLE, LABELS, **given), agents)


@pytest.mark.parametrize("partition", ["labels", "shards", "dirichlet"])
def test_partitions_by_label_need_labels(partition: str) -> None:
    data = from_arrays(TABLE, TABLE[:, 0], TABLE, TABLE[:, 0], task="regression")
    with pytest.raises(DataError, match="needs labels, and regression has none; use one of everything, given, iid"):
        shared(data, 2, partition)
    assert [len(own.train) for own in shared(data, 2, "iid")] == [2, 2]
    assert {own.labels for own in shared(data, 2, "iid")} == {()}


def save_images(root: Path, names: list[str], shape: tuple[int, ...] = (4, 5)) -> Path:
    image = pytest.importorskip("PIL.Image")
    for place, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(np.full(shape, place, np.uint8)).save(root / name)
    return root


def folders(root: Path, **options: Any) -> Any:
    entry = datasets["folders"]
    chosen: Options = entry.options.model_validate({"path": str(root), **options})
    return entry.make(**dict(chosen))


def test_folders_by_agent_and_class(tmp_path: Path) -> None:
    names = [
        "train/a10/cat/1.png",
        "train/a2/dog/1.png",
        "train/a2/cat/2.png",
        "test/a2/dog/1.png",
        "test/a10/cat/9.png",
    ]
    made = folders(save_images(tmp_path / "pets", names), grey=True)
    assert (made.name, made.shape, made.classes) == ("pets", (1, 4, 5), ("cat", "dog"))
    assert made.train.targets.tolist() == [0, 1, 0]  # a2 before a10
    assert made.train.agents.tolist() == [0, 0, 1]
    assert made.train.inputs[:, 0, 0, 0].tolist() == [2, 1, 0]
    assert folders(tmp_path / "pets", size=[8, 6]).shape == (3, 8, 6)


def test_folders_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        folders(tmp_path)
    root = save_images(tmp_path / "x", ["train/a/cat/1.png", "test/b/cat/1.png"])
    with pytest.raises(DataError, match=r"agent 'b' has test images .* but no training images"):
        folders(root)
    with pytest.raises(DataError, match=r"is not .*CLASS/image; set dataset\.agents"):
        folders(root, agents=False)
    save_images(root, ["train/a/cat/2.png"], (9, 9))
    with pytest.raises(DataError, match=r"is 9x9, but .* is 4x5; set dataset\.size"):
        folders(root)
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.full((4, 5), 40000, np.uint16)).save(root / "train/a/cat/2.png")
    with pytest.raises(DataError, match="more than 8 bits a pixel"):
        folders(root)


def test_labels_may_be_text() -> None:
    x, fruit = TABLE, np.array(["pear", "fig", "pear", "fig"])
    for y in (fruit, fruit.tolist(), fruit.astype(object)):
        mine = from_arrays(x, y, x, y)
        assert (mine.classes, mine.train.targets.tolist()) == (("fig", "pear"), [1, 0, 1, 0])
    assert from_arrays(x, fruit, x, fruit, ["pear", "fig"]).train.targets.tolist() == [0, 1, 0, 1]
    with pytest.raises(DataError, match="arrays y_test has numbers as labels, but the other split has text"):
        from_arrays(x, fruit, x, LABELS)
    with pytest.raises(DataError, match="arrays y_test has label 'pear', which is not in classes; add it"):
        from_arrays(x, ["fig"] * 4, x, fruit, ["fig"])
    with pytest.raises(DataError, match=r"arrays y_train is object of shape \(4,\); labels are whole numbers"):
        from_arrays(x, ["fig", None, "fig", "fig"], x, LABELS)


def test_numbers_too_large_or_small_are_one_line() -> None:
    x, y = np.random.default_rng(0).random((20, 3), np.float32), np.arange(20) % 2
    with pytest.raises(DataError, match=r"arrays x_train has a mean .*e\+3[01]; rescale them to below 1e\+30"):
        from_arrays(x * 1e31, y, x * 1e31, y)
    with pytest.raises(DataError, match=r"arrays y_train has a mean .*e\+3[45]; rescale them to below 1e\+30"):
        from_arrays(x, x[:, 0] * 1e35, x, x[:, 0], task="regression")
    with pytest.raises(DataError, match=r"arrays x_train has a deviation of .*e-3[01]; rescale them to above 1e-24"):
        from_arrays(x * 1e-30, y, x, y)
    assert from_arrays(x * 0, y, x * 0, y).normalisation  # a constant feature is none of these
