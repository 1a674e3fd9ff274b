"""Places of words and image tokens, and where they are found."""

import torch

from kata.nn.qwen3.places import image_split, token_places


def test_words_follow_each_other_and_images_count_rows_and_columns():
    is_image = torch.tensor(
        [[0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0]]
    ).bool()
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[1, 0] = False
    places = token_places(is_image, valid, [(2, 3), (1, 2)])
    assert places[0].tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 6, 8],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 6, 8],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8],
    ]
    # Padding takes up no room; the second image follows the first one at once.
    assert places[1, 0].tolist() == [0, 0, 1, 2, 2, 2, 2, 2, 2, 5, 5, 7]


def test_images_are_found_in_order():
    split = image_split(torch.tensor([[0, 1, 0, 1], [1, 1, 0, 0]]).bool(), 2)
    assert split.images.tolist() == [[1, 3], [0, 1]]
    assert split.others.tolist() == [[0, 2], [2, 3]]
