"""What an answer may look like is a grammar; before each token it says which may come next.

    structured_outputs = {"json": schema} | {"regex": pattern} | {"choice": ["yes", "no"]} | {"grammar": EBNF}

    add_request   read, or refused with the reason
    preparing     compiled for this vocabulary, in a thread; others run meanwhile
    waiting       in its own place, by arrival: while it was prepared, whoever came later may have been let in
    each row      one bit a token, from where the matcher stands; drafts too: it walks along, and walks back

        tokens   {  "a"  :            the matcher stands here, and allows 1, [, {, ...
        drafts            1  ,        then here, and here; if they were wrong, it goes back to the colon

EOS is allowed exactly where the grammar may end; other special tokens never, for they are no text. JSON is what
json.dumps would write: one line, no properties that the schema does not name (a small model that may write blanks
writes blanks). All four become EBNF (`languages/`), which xgrammar compiles and follows; what EBNF cannot keep is
refused. Invariant: whatever a sequence has said, its grammar allows, and it can still be completed; how its matcher got
there (guesses, giving way) leaves no trace. No tensors here: bits go into a `Row` as bytes. (From level
03.)"""

import json
import re
from collections.abc import Sequence as SequenceOf
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from tokenizers import Tokenizer

from .languages import regex, schema
from .languages.ebnf import any_of, find_endless, find_macros, literal, names_nul

if TYPE_CHECKING:
    import xgrammar

Compiled = Future["xgrammar.CompiledGrammar"]
CACHE_BYTES = 256 << 20  # of compiled grammars that may be asked for again
BLANK = re.compile("▁[^▁]")  # how SentencePiece spells the one before a word
NUM_THREADS = 4  # a large grammar may take half a minute: small ones need not wait behind it


class Order:
    """A grammar that was asked for. When nobody is left who did, it is not compiled, unless that has begun."""

    def __init__(self, compiled: Compiled):
        self.compiled = compiled

    def __del__(self) -> None:
        self.compiled.cancel()


class Grammar:
    """One choice's way through its grammar."""

    def __init__(self, order: Order, vocab_size: int):
        self.order, self.vocab_size = order, vocab_size
        self.path: list[int] = []  # the tokens that brought the matcher where it stands

    def anew(self) -> "Grammar":
        """Another choice's way through the same."""
        return Grammar(self.order, self.vocab_size)

    @property
    def compiled(self) -> Compiled:
        return self.order.compiled

    @property
    def is_ready(self) -> bool:
        return self.compiled.done()

    @property
    def error(self) -> str | None:
        """Why it could not be compiled; asked when it is ready."""
        reason = self.compiled.exception()
        return None if reason is None else f"structured_outputs cannot be compiled: {reason}"

    @cached_property
    def matcher(self) -> "xgrammar.GrammarMatcher":
        from xgrammar import GrammarMatcher

        return GrammarMatcher(self.compiled.result())

    @cached_property
    def bits(self) -> Any:
        from xgrammar import allocate_token_bitmask

        return allocate_token_bitmask(1, self.vocab_size)

    def walk(self, token_ids: list[int]) -> bool:
        """To where these tokens lead from the beginning; False, and as far as it goes, if it does not allow them."""
        common = min(len(self.path), len(token_ids))
        while self.path[:common] != token_ids[:common]:
            common -= 1
        if common < len(self.path):
            self.matcher.rollback(len(self.path) - common)
            del self.path[common:]
        for token_id in token_ids[common:]:
            if self.matcher.is_terminated() or not self.matcher.accept_token(token_id):
                return False
            self.path.append(token_id)
        return True

    def count_allowed(self, said: list[int], drafts: SequenceOf[int]) -> int:
        """How many of the drafts may follow what was said."""
        self.walk([*said, *drafts])
        return len(self.path) - len(said)

    def permitted(self, said: list[int]) -> bytes | None:
        """Which tokens may follow: bit i % 8 of byte i // 8 is token i's. None: all, or it makes no difference."""
        if not self.walk(said) or self.matcher.is_terminated() or not self.matcher.fill_next_token_bitmask(self.bits):
            return None
        result: bytes = self.bits.numpy().tobytes()
        return result


class Grammars:
    """Reads and compiles grammars for one model. tokenizer: None if it has none."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, eos_token_ids: frozenset[int]):
        self.tokenizer, self.vocab_size, self.eos_token_ids = tokenizer, vocab_size, eos_token_ids
        self.pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="grammars")
        self.lock = Lock()
        self.open_now: WeakValueDictionary[str, Order] = WeakValueDictionary()  # what is in use is compiled once

    def check(self, structure: dict[str, Any]) -> None:
        """Raises ValueError for what is no grammar, or for a model that cannot follow any."""
        if self.tokenizer is None:
            raise ValueError("structured_outputs needs a tokenizer, and this model has none")
        if not self.eos_token_ids:
            raise ValueError("structured_outputs needs an end-of-sequence token, and this model has none")
        if '"Metaspace"' in self.decoder:  # of a first word most drop all blanks, of others none
            raise ValueError("structured_outputs cannot be kept with this model's tokenizer: Metaspace drops blanks")
        read(structure)

    def open(self, structure: dict[str, Any]) -> Grammar:
        """Begin to compile it, unless that has been done."""
        name = json.dumps(structure)
        if (order := self.open_now.get(name)) is None:
            order = self.open_now[name] = Order(self.pool.submit(self.compile, structure))
        return Grammar(order, self.vocab_size)

    def compile(self, structure: dict[str, Any]) -> "xgrammar.CompiledGrammar":
        with self.lock:  # whoever is first makes it
            compiler = self.compiler
        return compiler.compile_grammar(self.spoken(read(structure)))

    def spoken(self, rules: "xgrammar.Grammar") -> "xgrammar.Grammar":
        """As it is said in tokens: where the first blank of a text is dropped, one stands before it."""
        from xgrammar import Grammar as Rules

        return Rules.concat(Rules.from_ebnf('root ::= " "'), rules) if self.drops_a_blank else rules

    @cached_property
    def compiler(self) -> "xgrammar.GrammarCompiler":
        from xgrammar import GrammarCompiler, TokenizerInfo

        ends = sorted(self.eos_token_ids)
        info = TokenizerInfo(self.words, self.vocab_type, vocab_size=self.vocab_size, stop_token_ids=ends)
        return GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)

    @property
    def words(self) -> list[str]:
        """As the tokenizer spells them; what is no text has none: special tokens, and whatever ends an answer."""
        assert self.tokenizer is not None
        words = [""] * self.vocab_size
        added = self.tokenizer.get_added_tokens_decoder()
        special = self.eos_token_ids.union(token_id for token_id, token in added.items() if token.special)
        for word, token_id in self.tokenizer.get_vocab(with_added_tokens=True).items():
            if token_id < self.vocab_size and token_id not in special:
                words[token_id] = word
        return words

    @cached_property
    def drops_a_blank(self) -> bool:
        """Whether its decoder takes the first blank off a text, as Llama 2's and Mistral's do."""
        assert self.tokenizer is not None
        vocab = self.tokenizer.get_vocab(with_added_tokens=False)
        begun = next((token_id for word, token_id in vocab.items() if BLANK.match(word)), None)
        return begun is not None and not self.tokenizer.decode([begun, begun]).startswith(" ")

    @cached_property
    def decoder(self) -> str:
        """How it puts words together, as JSON."""
        assert self.tokenizer is not None
        return json.dumps(json.loads(self.tokenizer.to_str())["decoder"])

    @property
    def vocab_type(self) -> "xgrammar.VocabType":
        """How it spells bytes that are no letters: by its decoder."""
        from xgrammar import VocabType

        if '"ByteLevel"' in self.decoder:
            return VocabType.BYTE_LEVEL
        return VocabType.BYTE_FALLBACK if '"ByteFallback"' in self.decoder else VocabType.RAW


def read(structure: dict[str, Any]) -> "xgrammar.Grammar":
    """Raises ValueError with the reason: xgrammar's, or why it could not be kept."""
    from xgrammar import Grammar as Rules

    [(kind, source)] = structure.items()
    try:
        text, places = write(kind, source)
        rules = Rules.from_ebnf(text)
    except (RuntimeError, ValueError, TypeError) as error:  # the last, of what is no JSON
        reason = str(error).strip().rpartition(".cc:")[2].partition(": ")[2] if ".cc:" in str(error) else error
        raise ValueError(f"structured_outputs: this {kind} is not understood: {reason}") from error
    if macros := find_macros(str(rules)):
        raise ValueError(f"structured_outputs: this {kind} is not understood: {macros[0]}(...) is not supported")
    if endless := find_endless(str(rules)):
        what = ", ".join(dict.fromkeys([places[name] for name in endless if name in places] or endless))
        raise ValueError(f"structured_outputs: this {kind} is not understood: no text ever completes {what}")
    return rules


def write(kind: str, source: Any) -> tuple[str, dict[str, str]]:
    """Its EBNF, and where its rules come from, if that is known. Raises ValueError for what EBNF cannot say."""
    if kind == "json":
        return schema.to_ebnf(source)
    if kind == "regex":
        return f"root ::= {regex.to_ebnf(source)}", {}
    if kind == "choice":
        return f"root ::= {any_of(map(literal, source))}", {}
    if names_nul(source):
        raise ValueError("it names a NUL, which cannot be said")
    return source, {}
