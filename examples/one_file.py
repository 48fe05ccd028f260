"""MCE-PL and accord in one file of plain PyTorch: ten agents learn digits by exchanging binary masks.

    python examples/one_file.py      # ten seconds on a laptop

Every agent has the same random network and never trains its weights w. It learns a score z for each weight, and its
model is w ⊙ m, where the mask m keeps the highest scores of each layer. Neighbours exchange masks and nothing else.

Only the digits, and which agent has which of them, come from peermask. All else is here, and ends with the same masks,
entry for entry, as `peermask run` with the config CONFIG: a test compares them.
"""

from hashlib import blake2b
from math import cos, pi, sqrt

import numpy as np
import torch
from torch.nn import functional as F

from peermask.data.digits import digits
from peermask.data.local import share_out

SEED, AGENTS, ROUNDS, BATCH, RETENTION = 0, 10, 60, 10, 0.5
CONFIG = {
    "seed": SEED, "agents": AGENTS, "rounds": ROUNDS, "batch_size": BATCH, "retention": RETENTION, "readout": "own",
    "partition": {"name": "labels", "labels_per_agent": 5}, "data": {"fraction": 0.1},
    "model": "mlp", "mask": {"fc_keep": "r"}, "algorithm": "accord", "compare": ["mce-pl"],
}  # fmt: skip


# Random numbers. Every draw has a key, so that no draw depends on another and any agent can repeat it.


def draw(purpose, count, agent=0, t=0):
    """64 random bits, `count` times, for one purpose, agent and round t."""
    key = blake2b(f"{SEED}/{purpose}/{agent}/{t}/0".encode(), digest_size=16).digest()
    return np.random.Philox(key=int.from_bytes(key, "little")).random_raw(count)


def uniform(purpose, count):
    """Uniform in [0, 1): the upper 53 of 64 bits."""
    return (draw(purpose, count) >> np.uint64(11)) * 2.0**-53


# The data and the graph. An agent has eleven images or so, of five digits.

DATA = digits()
SAMPLES = share_out(DATA, "labels", {"labels_per_agent": 5}, AGENTS, SEED, fraction=0.1)
UPPER = np.triu_indices(AGENTS, 1)
LINKS = torch.zeros(AGENTS, AGENTS)  # [N, N] 1 where two agents are neighbours
LINKS[UPPER] = torch.from_numpy(uniform("graph", len(UPPER[0])) < 0.5).float()
LINKS += LINKS.T.clone()


def batch(agent, t):
    """The first samples of a new shuffle: images [B, 1, 8, 8] in [-1, 1], and digits [B]."""
    own = SAMPLES[agent].train
    rows = own[np.argsort(draw("batch", len(own), agent, t), kind="stable")[:BATCH]]
    return DATA.normalise(DATA.train.inputs[rows]), DATA.train.targets[rows]


# The network: three linear layers. Its weights lie in one flat vector w [P], which all agents draw alike.

SHAPES = {"1.weight": (256, 64), "3.weight": (128, 256), "5.weight": (10, 128)}  # outputs, inputs
SIZES = [rows * columns for rows, columns in SHAPES.values()]
KEPT = [round(RETENTION * size) for size in SIZES]  # weights that a mask keeps in each layer


def flat(of_layer):
    """One vector [P] of a function of every layer's name, size and number of inputs."""
    parts = [of_layer(name, rows * columns, columns) for name, (rows, columns) in SHAPES.items()]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))


def signed_constant(name, size, inputs):
    """±sqrt(2 / inputs): only the signs are random."""
    return np.where(draw(f"frozen/{name}", size) >> np.uint64(63), -1.0, 1.0) * sqrt(2 / inputs)


W = flat(signed_constant)
FIRST_SCORES = flat(lambda name, size, inputs: (2 * uniform(f"scores/{name}", size) - 1) / sqrt(inputs))
FIRST_VOTES = flat(lambda name, size, _: uniform(f"votes/{name}", size) < 0.3)


def logits(weights, images):
    """The network as a function of its weights, one matrix a layer; its biases are zero."""
    x = images.flatten(1)
    for place, weight in enumerate(weights):
        x = F.linear(x.relu() if place else x, weight, torch.zeros(len(weight)))
    return x


def layers(v):
    """[P] as one matrix a layer."""
    return [part.view(shape) for part, shape in zip(v.split(SIZES), SHAPES.values(), strict=True)]


# Masks. Rows are agents: scores z, masks m and votes n are [N, P].


def score_gradient(z, m, t):
    """G = ∂f/∂v ⊙ w ⊙ sign(z) at v = w ⊙ m, on one batch; selection counts as the identity.   Eq. (15)"""
    rows = []
    for agent, mask in enumerate(m):
        images, targets = batch(agent, t)
        v = [weight.requires_grad_() for weight in layers(mask * W)]
        gradients = torch.autograd.grad(F.cross_entropy(logits(v, images), targets), v)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return z.sign() * W * torch.stack(rows)


def top(magnitude):
    """Keep the largest entries of each layer; of equal ones, the first.   Eq. (3)"""
    mask = torch.zeros_like(magnitude)
    for layer, out, kept in zip(magnitude.split(SIZES, 1), mask.split(SIZES, 1), KEPT, strict=True):
        out.scatter_(1, layer.argsort(dim=1, descending=True, stable=True)[:, :kept], 1.0)
    return mask


def scale(x, of=lambda part: part.abs().mean(1, keepdim=True)):
    """s: the mean of |x| over a layer, or another number of it, at each of its entries."""
    return torch.cat([of(part).expand_as(part) for part in x.split(SIZES, 1)], 1)


def select(z, n, gain):
    """Keep what is important to the agent, |z|, and to its neighbours, n.   Eq. (11), (12)"""
    return top(z.abs() + gain * n * scale(z))


def votes(links, masks, own=0):
    """n: the mean of the masks that come over an agent's links, and of `own` times its own. Counts are exact."""
    heard = links.sum(1, keepdim=True)
    return (links @ masks + own * (heard > 0) * masks) / (heard + own).clamp(min=1)


# The two methods. A round: every agent learns from one batch, sends its mask, and fuses those of its neighbours.


def mce_pl(lr=1.0):
    """The paper's method: neighbours' votes change which entries are selected, and where the step is longer."""
    z, n = FIRST_SCORES.repeat(AGENTS, 1), FIRST_VOTES.repeat(AGENTS, 1)
    m = select(z, n, gain=1.0)
    for t in range(1, ROUNDS + 1):
        g = score_gradient(z, m, t)  # learn
        z = z - lr * g  # Eq. (14)
        sent = select(z, n, gain=1.0)  # Eq. (16)
        n = votes(LINKS, sent)  # fuse
        z = z - lr * (n * g)  # Eq. (17)
        m = select(z, n, gain=1.0)  # Eq. (18), (19)
    return m


def accord(own_votes=5, pull=0.6, gain=0.8):
    """This package's method: votes pull the scores, so that agents agree; a personal mask, never sent, is deployed."""
    lr, lean = min(0.1, 8 / ROUNDS), 0.15 / torch.tensor([[float(len(own.train))] for own in SAMPLES]).sqrt()
    z, u, n = FIRST_SCORES.repeat(AGENTS, 1), *torch.zeros(2, AGENTS, len(W))
    m, personal = select(z, n, gain), None
    for t in range(1, ROUNDS + 1):
        if 2 * t > ROUNDS:
            z_own, u_own, m_own = personal or (z, u, m)  # it starts as the agreed mask, half-way
            z_own, u_own = step(z_own, u_own, m_own, t, 0.25 * lr * (1 + cos(pi * max(0.0, 2 * (t - 1) / ROUNDS - 1))))
            z_own = z_own + lean * scale(z_own) * z_own.sign() * (n - m_own)
            personal = z_own, u_own, select(z_own, n, gain)
        z, u = step(z, u, m, t, 0.5 * lr * (1 + cos(pi * (t - 1) / ROUNDS)))  # learn
        sent = select(z, n, gain)
        n = votes(believed(sent), sent, own_votes)  # fuse
        z = z + pull * scale(z) * z.sign() * (n - sent)
        m = select(z, n, gain)
    return personal[2]


def step(z, u, m, t, rate, momentum=0.9, decay=5e-4):
    """z − η (û + ω z), where û is u in units of the scores, layer by layer."""
    u = momentum * u + score_gradient(z, m, t)
    rms = scale(u, lambda part: part.norm(dim=1, keepdim=True) / sqrt(part.shape[1]))
    return z.sub(u * (scale(z) / rms) + decay * z, alpha=rate), u


def believed(masks, factor=1.5, halfway=0.5):
    """Links [N, N] without those to liars: masks that are much further from the agent's own than the median."""
    unrelated = sum(kept - kept * kept / size for kept, size in zip(KEPT, SIZES, strict=True))
    # 0 for equal masks, 1 on average for masks that have nothing to do with each other
    distance = (sum(KEPT) - (masks @ masks.T).double()) / unrelated  # [N, N]
    medians = [np.median(row[own > 0]) for row, own in zip(distance, LINKS, strict=True)]
    return LINKS * (distance <= (factor * torch.tensor(medians)).clamp(max=halfway)[:, None])


def accuracy(masks):
    """The mean over agents, on all test images of an agent's digits; it answers among those."""
    shares = []
    for own, mask in zip(SAMPLES, masks, strict=True):
        images, targets = DATA.normalise(DATA.test.inputs[own.test]), DATA.test.targets[own.test]
        answers = torch.tensor(own.labels)[logits(layers(mask * W), images)[:, own.labels].argmax(1)]
        shares.append((answers == targets).float().mean())
    return torch.stack(shares).mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)  # as peermask computes an agent: sums in the same order, and equal to the last bit
    for method in (mce_pl, accord):
        print(f"{method.__name__}: {accuracy(method()):.1%} of test digits right, on average over {AGENTS} agents")
