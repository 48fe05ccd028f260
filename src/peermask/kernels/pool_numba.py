"""Max-pooling over windows of 2x2 and ReLU in one pass, and their gradient in one."""

import numpy as np

from peermask.compiled import compiled

NOWHERE = np.uint8(4)  # the largest entry of a window is not positive, so that ReLU's gradient is zero


@compiled
def pool(x, y, place):
    """The largest of each window, or 0, and which of the four it is: [N, H, W, C] -> twice [N, H//2, W//2, C].

    Of equal entries the first counts, and NaN counts as the largest, as torch has it.
    """
    images, height, width, channels = y.shape
    for n in range(images):
        for h in range(height):
            for w in range(width):
                first, second = x[n, 2 * h, 2 * w], x[n, 2 * h, 2 * w + 1]
                third, fourth = x[n, 2 * h + 1, 2 * w], x[n, 2 * h + 1, 2 * w + 1]
                largest, at = y[n, h, w], place[n, h, w]
                for c in range(channels):
                    value, own = first[c], np.uint8(0)
                    if second[c] > value or second[c] != second[c]:
                        value, own = second[c], np.uint8(1)
                    if third[c] > value or third[c] != third[c]:
                        value, own = third[c], np.uint8(2)
                    if fourth[c] > value or fourth[c] != fourth[c]:
                        value, own = fourth[c], np.uint8(3)
                    if value <= 0:
                        own = NOWHERE
                    largest[c], at[c] = np.float32(0) if value < 0 else value, own


@compiled
def unpool(dy, place, dx):
    """The gradient where the largest entry was, and zero elsewhere: twice [N, H//2, W//2, C] -> [N, H, W, C]."""
    images, height, width, channels = dy.shape
    dx[:, 2 * height :] = 0  # a last row or column may be in no window
    dx[:, :, 2 * width :] = 0
    for n in range(images):
        for h in range(height):
            for w in range(width):
                gradient, at = dy[n, h, w], place[n, h, w]
                for k in range(4):
                    out = dx[n, 2 * h + k // 2, 2 * w + k % 2]
                    for c in range(channels):
                        out[c] = gradient[c] + np.float32(0) if at[c] == k else np.float32(0)  # -0.0 becomes 0.0
