"""MCE-PL and accord in one file of plain PyTorch: ten agents learn digits by exchanging binary masks.

    python examples/one_file.py      # ten seconds on a laptop

Every agent has the same random network and never trains its weights w. It learns a score z for each weight, and its
model is w ⊙ m, where the mask m keeps the highest scores of each layer. Neighbours exchange masks and nothing else.

Only the digits, and which agent has which of them, come from peermask. All else is here, and ends with the same masks,
entry for entry, as `peermask run` with the config CONFIG: a test compares them. Liars are believed here (`guard = 0`).
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
    "seed": SEED, "agents": AGENTS, "rounds": ROUNDS, "batch_size": BATCH, "retention": RETENTION,
    "partition": {"name": "labels", "labels_per_agent": 5}, "data": {"fraction": 0.1},
    "model": "mlp", "mask": {"fc_keep": "r"}, "algorithm": {"name": "accord", "guard": 0}, "compare": ["mce-pl"],
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


def batch(agent, t, size):
    """The first samples of a new shuffle: images [B, 1, 8, 8] in [-1, 1], and digits [B]."""
    own = SAMPLES[agent].train
    rows = own[np.argsort(draw("batch", len(own), agent, t), kind="stable")[:size]]
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


def score_gradient(z, m, t, part=1):
    """G = ∂f/∂v ⊙ w ⊙ sign(z) at v = w ⊙ m, on one batch.   Eq. (15)

    Selection has no derivative. It counts as the identity (straight-through), so entries that are not kept learn too.
    """
    rows = []
    for agent, mask in enumerate(m):
        images, targets = batch(agent, t, BATCH // part)
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


def scale(z):
    """s: the mean of |z| over a layer, at each of its entries."""
    return torch.cat([part.abs().mean(1, keepdim=True).expand_as(part) for part in z.split(SIZES, 1)], 1)


def select(z, n, gain):
    """Keep what is important to the agent, |z|, and to its neighbours, n.   Eq. (11), (12)"""
    return top(z.abs() + gain * n * scale(z))


def votes(links, masks, own=0):
    """n: the mean of the masks over an agent's links, its own counted `own` times at most. Counts are exact."""
    heard = links.sum(1, keepdim=True)
    own = heard.clamp(max=own)  # never more than the neighbours' together
    return (links @ masks + own * masks) / (heard + own).clamp(min=1)


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
    """This package's method: the scores are pulled towards the voters' masks, so that agents agree.

    In the second half of the rounds an agent also learns a personal mask, pulled gently. It is deployed and never sent.
    """
    lr, start = min(0.1, 8 / ROUNDS), 0.5
    gently = 0.15 / torch.tensor([[float(len(own.train))] for own in SAMPLES]).sqrt()  # [N, 1]
    z, n = FIRST_SCORES.repeat(AGENTS, 1), torch.zeros(AGENTS, len(W))
    u, m, personal = torch.zeros_like(z), select(z, n, gain), None
    for t in range(1, ROUNDS + 1):
        if t > start * ROUNDS:  # from half of each batch
            z_, u_, m_, n_ = personal or (z, torch.zeros_like(u), m, n)
            z_, u_ = step(z_, u_, m_, t, 0.25 * lr, ((t - 1) / ROUNDS - start) / (1 - start), 2)
            z_ = z_ + gently * scale(z_) * z_.sign() * (n - select(z_, n_, gain))
            personal = z_, u_, select(z_, n_, gain), n_
        z, u = step(z, u, m, t, lr, (t - 1) / ROUNDS)  # learn
        sent = select(z, n, gain)
        n = votes(LINKS, sent, own_votes)  # fuse
        z = z + pull * scale(z) * z.sign() * (n - sent)
        m = select(z, n, gain)
    return personal[2]


def step(z, u, m, t, lr, progress, part=1, momentum=0.9, decay=5e-4):
    """A step down the gradient, scaled in each layer to the size of the scores; its rate falls to zero by a cosine."""
    lr = 0.5 * lr * (1 + cos(pi * progress))
    u = momentum * u + score_gradient(z, m, t, part)
    rms = [(part.norm(dim=1, keepdim=True) / sqrt(part.shape[1])).expand_as(part) for part in u.split(SIZES, 1)]
    return z.sub(u * (scale(z) / torch.cat(rms, 1)) + decay * z, alpha=lr), u


def accuracy(masks):
    """The mean over agents, on all test images of an agent's digits."""
    shares = []
    for own, mask in zip(SAMPLES, masks, strict=True):
        images, targets = DATA.normalise(DATA.test.inputs[own.test]), DATA.test.targets[own.test]
        shares.append((logits(layers(mask * W), images).argmax(1) == targets).float().mean())
    return torch.stack(shares).mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)  # as peermask computes an agent: sums in the same order, and equal to the last bit
    for method in (mce_pl, accord):
        print(f"{method.__name__}: {accuracy(method()):.1%} of test digits right, on average over {AGENTS} agents")
