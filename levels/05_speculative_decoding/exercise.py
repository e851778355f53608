"""A guess stands or falls by a comparison: write what is kept, and why the words are still the model's own.

**Part 1: `verify`.** The model has read the newest token of each chunk and its guesses behind it, in one forward, and
there is a row of logits after each of them. `said = sample(logits, batch.rows)` draws a word from each row,
`judge(batch, logits, guesses, said)` replaces those where a guess was drawn from a distribution, and
`unpack(batch, said)` has them chunk by chunk. (A chunk that does not reach its sequence's end has no row and says
nothing.)

    guess      mat  and  then          three guesses, so four rows
    said       mat  and  so   he       what the model says after each of "the", "mat", "and", "then"
    kept       mat  and  so            two were right; "so" is the model's own; "he" follows a word that nobody said

**Part 2: `choose`.** Where a guess x was *drawn*, with chance q(x), the words have to come out with the model's chances
p. Keep x with probability min(1, p(x) / q(x)). If it is not kept, draw from what p has beyond q: max(p - q, 0), made to
sum to 1. Where nothing is beyond (p = q but for rounding), draw from p.

    p      .5  .3  .2          a guess of the first word: p > q, always kept
    q      .1  .6  .3          of the second: kept with probability .3 / .6; of the third: .2 / .3
    p - q  .4   0   0          what was not kept becomes the first word

p and q are [N, V], x is [N], rows has N rows. A random number of a row that depends on no other draw:
`uniform(row.seed ^ ACCEPT, row.position)` to decide, the same with RESIDUAL for the replacement; `column([...], p)`
makes a tensor [N] of them, beside p, and `pick(weights, [...])` draws a word from each row of weights by such numbers.
"""

from levels.exercises import Part

FILE = "minipaged/speculative/verify.py"
PARTS = (
    Part(FILE, ("verify",), ("tests/speculative/test_verify.py -k stands", "tests/test_guessing.py")),
    Part(FILE, ("choose",), ("tests/speculative/test_verify.py",)),
)
HINTS = {
    "what agrees stands": "Compare each guess with what the model said in its place, from the first on. At the first "
    "that differs, take the model's word, and stop: what was guessed behind it follows a word that was never said.",
    "what is said is what plain decoding says": "Compare each guess with what the model said in its place, from the "
    "first on, and forget whatever lies behind the first that was wrong.",
    "a guess that the model likes at least as much is kept": "With p(x) >= q(x), min(1, p(x) / q(x)) is 1: "
    "keep it, always. Have you used q, the guesser's chances?",
    "what the model would never say is not kept": "With p(x) = 0 a guess is never kept.",
    "whatever replaces a guess has more chance with the model": "Draw the replacement from max(p - q, 0). A plain draw "
    "from p would give the words that were guessed too often a second chance.",
    "come too often or too rarely": "Over many draws the words do not come with the model's chances: look at what is "
    "kept, at what replaces it, and whether both use the same random number.",
    "equal distributions keep everything": "With p = q every guess is kept.",
}
