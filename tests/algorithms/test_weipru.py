"""ind-, avr- and par-weipru: real weights, pruned by magnitude."""

import networkx as nx
from worked_cases import Gradients, agents, close, make, mixing, play, rows

FIRST = [4.0, -3.0, 2.0, -1.0, 0.5]
G = rows([3, 0, 0, 3, 1], [0, 1, 0, 0, 0])


def test_hard_pruning_keeps_the_largest_after_the_step() -> None:
    """x − g = [1 −3 2 −4 −0.5]: the two largest are −3 and −4; the bias is never pruned."""
    method = make("ind-weipru", FIRST, {"lr": 1.0})
    played = play(method, method.init(agents(2, 1)), Gradients((G,)), mixing(2))
    close(played.model, rows([0, -3, 0, -4, -0.5], [4, 0, 0, 0, 0.5]))
    close(played.state.params, played.model)
    assert played.payload == {}


def test_soft_pruning_keeps_the_latent_weights_dense() -> None:
    method = make("ind-weipru", FIRST, {"lr": 1.0, "pruning": "soft"})
    played = play(method, method.init(agents(2, 1)), Gradients((G,)), mixing(2))
    close(played.state.params, rows([1, -3, 2, -4, -0.5], [4, -4, 2, -1, 0.5]))
    close(played.model, rows([0, -3, 0, -4, -0.5], [4, 0, 0, 0, 0.5]))


def test_the_plain_average_counts_zeros() -> None:
    """s = [0 −3 0 −4], [4 −4 0 0]; the mean [2 −3.5 0 −2] has three entries, of which each deploys two."""
    method = make("avr-weipru", FIRST, {"lr": 1.0})
    played = play(method, method.init(agents(2, 2)), Gradients((G,)), mixing(2))
    close(played.payload["weights"], rows([0, -3, 0, -4], [4, -4, 0, 0]))
    close(played.state.params, rows(*[[2, -3.5, 0, -2, 0]] * 2))
    close(played.model, rows(*[[2, -3.5, 0, 0, 0]] * 2))


def test_the_average_can_be_deployed_as_it_is() -> None:
    method = make("avr-weipru", FIRST, {"lr": 1.0, "eval_dense": True})
    played = play(method, method.init(agents(2, 2)), Gradients((G,)), mixing(2))
    close(played.model, rows(*[[2, -3.5, 0, -2, 0]] * 2))


def test_the_open_average_leaves_the_own_weights_out_except_when_alone() -> None:
    method = make("avr-weipru", FIRST, {"lr": 1.0, "neighbours": "open"})
    data, first = Gradients((G,)), method.init(agents(2, 2))
    close(play(method, first, data, mixing(2)).model, rows([4, -4, 0, 0, 0.5], [0, -3, 0, -4, -0.5]))
    alone = mixing(2, nx.empty_graph(2))
    close(play(method, first, data, alone).model, rows([0, -3, 0, -4, -0.5], [4, -4, 0, 0, 0.5]))


def test_partial_averaging_divides_by_those_who_kept_an_entry() -> None:
    """S = [4 −7 0 −4], C = [1 2 0 1]: nothing shrinks for being held by one alone."""
    method = make("par-weipru", FIRST, {"lr": 1.0})
    played = play(method, method.init(agents(2, 2)), Gradients((G,)), mixing(2))
    close(played.state.params, rows(*[[4, -3.5, 0, -4, 0]] * 2))
    close(played.model, rows(*[[4, 0, 0, -4, 0]] * 2))


def test_partial_averaging_can_stay_on_the_own_support() -> None:
    method = make("par-weipru", FIRST, {"lr": 1.0, "support": "own"})
    played = play(method, method.init(agents(2, 2)), Gradients((G,)), mixing(2))
    close(played.model, rows([0, -3.5, 0, -4, 0], [4, -3.5, 0, 0, 0]))


def test_training_sees_the_pruned_model_and_moves_the_whole_one() -> None:
    """Straight through: the second round steps from the three-entry mean, not from the two deployed."""
    method = make("avr-weipru", FIRST, {"lr": 1.0})
    data, pair = Gradients((G,)), mixing(2)
    first = play(method, method.init(agents(2, 2)), data, pair)
    second = play(method, first.state, data, pair, round=2)
    close(second.payload["weights"], rows([0, -3.5, 0, -5], [2, -4.5, 0, 0]))
