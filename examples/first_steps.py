# %% [markdown]
# # First steps
#
# Ten agents with five labels and about fourteen images each learn digits, together and alone. Run it top to bottom,
# `python examples/first_steps.py [FOLDER]`, or cell by cell in an editor that knows `# %%`. It takes a minute and
# leaves everything in the folder `first-steps`.

# %%
import sys
from pathlib import Path

import peermask

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "first-steps")

# %% [markdown]
# An experiment is a config: plain values, or a TOML file. What is left out has a default (docs/config.md).
#
# Collaboration helps whoever has too little data to learn alone, so agents have few images here. With all images
# (`"fraction": 1.0`) an agent does well alone, and there is little to gain. The method is accord: agents vote on masks.

# %%
config = peermask.make_config(
    {
        "name": "first-steps",
        "rounds": 60,
        "retention": 0.3,
        "graph": {"name": "erdos-renyi", "p": 0.5},
        "partition": {"name": "labels", "labels_per_agent": 5},
        "data": {"fraction": 0.1},  # of each agent's images
        "algorithm": "accord",
        "compare": [{"name": "ind-mask", "lr": 0.3, "momentum": 0.9, "schedule": "cosine"}],
    }
)

# %% [markdown]
# Run it, and again: what is finished is only read. In a notebook a result shows itself, as a table and a curve.

# %%
watched = peermask.Execution(observer=peermask.ProgressLine())
result = peermask.run_experiment(config, folder / "run", execution=watched, resume=True)
alone = result.compared[0]
print(f"together {100 * result.mean_accuracy:.1f} %, alone {100 * alone.mean_accuracy:.1f} %")
print(f"collaboration gave {100 * (result.mean_accuracy - alone.mean_accuracy):+.1f} points")  # +6.5 in README's run
print(f"sent {result.sent_bytes / 1e6:.2f} MB in all")
result  # noqa: B018

# %% [markdown]
# The tables are rows of numbers, ready for pandas: `pandas.DataFrame(result.metrics())`.

# %%
last = [row for row in result.metrics() if row["round"] == result.round]
for row in last[:3]:
    print(f"agent {row['agent']:.0f}: density {row['density']:.2f}, accuracy {row['test_accuracy']:.2f}")

# %% [markdown]
# Every agent has a model of its own: an ordinary module.

# %%
model = result.local_models()[0]
print(model)

# %% [markdown]
# As a file it is a ticket: the seed of the random weights and a mask. Whoever has it can rebuild the model.

# %%
ticket = folder / "agent-0.ticket"
exported = peermask.export(result, agent=0, to=ticket, force=True)
print(*exported.lines, sep="\n")
found = peermask.evaluate(ticket, "digits")
print(f"the ticket is right on {found.own_right} of {found.own_samples} test samples of its own labels")

# %% [markdown]
# And a page with all of it, which opens from disk.

# %%
print(peermask.report(result))
