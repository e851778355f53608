"""Something to read: a passage about memory, cut to many lengths, and questions to ask of it."""

PASSAGE = """\
Early computers gave every program one unbroken stretch of memory, as long as the program might ever need. Nobody knew
in advance how much that would be, so people asked for the worst case and left most of it empty. Worse, when a program
ended, the hole that it left had a certain length, and the next program rarely fitted into it exactly. After a day of
work the memory was full of holes, none of them large enough, although half of it was free.

The way out was to stop insisting on one unbroken stretch. Memory was cut into small pieces of equal size, called pages.
A program was given a page when it first needed one, anywhere in memory, and a small table remembered where each of its
pages was. To the program its memory still looked unbroken, because every access went through the table. Now nothing was
reserved that was not used, except the rest of the last page, and every hole had the right size, since all holes have
the size of a page.

A language model that answers many people at once has the same trouble. For every token that it has read, it keeps a
key and a value in each of its layers, so that it need not read the token again. A conversation of a thousand tokens may
keep a hundred megabytes, and nobody knows in advance how long the answer is going to be. A server that reserves the
longest possible answer for everybody can talk to a few people at a time, and most of its memory lies idle. A server
that hands out small blocks, and keeps a table of them for every conversation, can talk to several times as many.

There is a price. Every read goes through the table, and the program that computes attention has to follow it. There is
also a new question: what happens when the blocks run out in the middle of an answer? Someone has to give way. Giving
back the blocks of the newest conversation is simple and fair. Its tokens are kept, so that later, when there is room
again, the model reads them once more and goes on as if nothing had happened.

The same table allows one thing more. Two conversations that begin with the same words need the same keys and values
for them, and two tables may point to the same block. What has been computed for the first need not be computed for the
second. It is enough to count how many tables point to a block, and to hand it out again only when the count is zero.
"""

QUESTIONS = (
    "What is the main idea of this text?",
    "Summarize this text for a child.",
    "Which problem does this text describe?",
    "Write a title for this text and explain it.",
    "What would you like to ask the author of this text?",
    "Name three facts from this text.",
    "Continue this text in the same style.",
    "Explain this text to a librarian.",
    "What is missing in this text?",
    "Say in one sentence why this text matters.",
    "Who could use what this text explains, and for what?",
    "Give an example for what this text explains.",
)


def ask(question: int, num_words: int) -> list[dict[str, str]]:
    """A conversation of one turn: a question about the first num_words of the passage."""
    excerpt = " ".join(PASSAGE.split()[:num_words])
    return [{"role": "user", "content": f"{QUESTIONS[question % len(QUESTIONS)]}\n\n{excerpt}"}]
