"""A table: 569 tumours by 30 measurements of any range, shared unevenly among eight agents.

pip install scikit-learn && python examples/tabular.py [FOLDER [ROUNDS]]
"""

import sys
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

import peermask

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tabular")
table, benign = load_breast_cancer(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(table, benign, test_size=0.25, random_state=0, stratify=benign)
data = peermask.from_arrays(x_train, y_train, x_test, y_test, ["malignant", "benign"], "tumours")
config = {
    "agents": 8,
    "rounds": int(sys.argv[2]) if len(sys.argv) > 2 else 200,
    "partition": {"name": "dirichlet", "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [128, 64]},
    "retention": 0.5,
    "compare": ["ind-mask"],
}
result = peermask.run_experiment(config, folder / "run", dataset=data)
print(f"together {result.mean_accuracy:.3f}, alone {result.compared[0].mean_accuracy:.3f}")
peermask.export(result, 0, folder / "agent-0.ticket", force=True)  # it takes the measurements as they are
found = peermask.evaluate(folder / "agent-0.ticket", data)
print(f"the ticket is right on {found.right} of {found.samples} tumours")
