"""A run of the tests closes with what it did not try."""

from __future__ import annotations

from not_tried import line


def test_reasons_become_subjects_with_counts_the_largest_first() -> None:
    reasons = ["Skipped: needs nft to lose packets", "Skipped: needs a GPU", "Skipped: needs a CUDA device and Triton"]
    assert line(reasons) == "not tried here: GPU (2), packet loss (1): see CONTRIBUTING"


def test_a_reason_without_a_subject_is_said_as_it_is() -> None:
    assert line(["Skipped: no Sunday"]) == "not tried here: no Sunday (1): see CONTRIBUTING"
