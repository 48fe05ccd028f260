"""ind-dense: the whole network, trained alone."""

from worked_cases import Gradients, agents, close, make, mixing, play, rows

G = rows([1, 0, -1, 2, 4], [0, 2, 0, 0, 0])


def test_a_step_goes_down_the_gradient() -> None:
    """x ← x − 0.1 g."""
    method = make("ind-dense", [1, 2, 3, 4, 5], {"lr": 0.1})
    played = play(method, method.init(agents(2, 2)), Gradients((G,)), mixing(2))
    close(played.model, rows([0.9, 2, 3.1, 3.8, 4.6], [1, 1.8, 3, 4, 5]))
    assert played.payload == {}


def test_weight_decay_shrinks_what_has_no_gradient() -> None:
    """x ← x − 0.1 (g + 0.5 x): the first weight of the second agent loses 0.1 · 0.5 · 1."""
    method = make("ind-dense", [1, 2, 3, 4, 5], {"lr": 0.1, "weight_decay": 0.5})
    played = play(method, method.init(agents(2, 2)), Gradients((G,)), mixing(2))
    close(played.model[1], rows([0.95, 1.7, 2.85, 3.8, 4.75])[0])


def test_momentum_adds_to_the_step_before() -> None:
    """u_1 = g, u_2 = 0.5 g + g: after two rounds the sum of steps is 0.1 (1 + 1.5) g."""
    method = make("ind-dense", [0, 0, 0, 0, 0], {"lr": 0.1, "momentum": 0.5})
    data, alone = Gradients((G,)), mixing(2)
    first = play(method, method.init(agents(2, 2)), data, alone)
    close(play(method, first.state, data, alone, round=2).model, -0.25 * G)
