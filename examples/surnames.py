"""Text: the language of a surname by its letters, where each of twelve agents knows three languages of nine.

pip install faker && python examples/surnames.py [FOLDER [ROUNDS]]
"""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np

import peermask

LENGTH, PLACES = 14, ("de_DE", "en_GB", "es_ES", "fi_FI", "fr_FR", "hr_HR", "it_IT", "nl_NL", "sv_SE")
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/surnames")
held = {place: sorted(set(import_module(f"faker.providers.person.{place}").Provider.last_names)) for place in PLACES}
names = [(name.lower()[:LENGTH].ljust(LENGTH), label) for label, own in enumerate(held.values()) for name in own[:400]]
letters = sorted({letter for name, _ in names for letter in name} - {" "})  # from 1; 0 is none
tokens = np.array([[letters.index(letter) + 1 if letter != " " else 0 for letter in name] for name, _ in names])
labels, test = np.array([label for _, label in names]), np.arange(len(names)) % 4 == 0
data = peermask.from_arrays(tokens[~test], labels[~test], tokens[test], labels[test], PLACES, "surnames", kind="tokens")
config = {"agents": 12, "rounds": int(sys.argv[2]) if len(sys.argv) > 2 else 300, "retention": 0.5, "model": "text"}
methods = {"partition": {"labels_per_agent": 3}, "algorithm": "accord", "compare": ["ind-mask"]}
result = peermask.run_experiment({**config, **methods}, folder / "run", dataset=data)
print(f"together {result.mean_accuracy:.3f}, alone {result.compared[0].mean_accuracy:.3f}")
peermask.export(result, 0, folder / "agent-0.ticket", force=True)
found = peermask.evaluate(folder / "agent-0.ticket", data)
print(f"the ticket is right on {found.own_right} of {found.own_samples} names of its own languages")
