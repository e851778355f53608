"""What may be said, written down as one kind of grammar, or refused where it cannot be written exactly.

    ebnf.py       characters, literals, rules; which of them end        regex.py      a pattern of Python's re
    schema.py     a JSON schema: how its parts are put together         shapes.py     what it says of one type
    strings.py    texts of a length, a pattern, a format                numbers.py    between two bounds
    apart.py      which schemas exclude each other

(From level 03.)"""
