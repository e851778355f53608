"""One engine on many devices, and many engines in step.

    executor.py    hides how many devices a batch takes        worker.py      one device's share of the work
    backends.py    who runs the ranks: multiprocess.py, torchrun.py, ray.py
    distributed.py, crew.py     to lead them                   rank.py        one of them, from inside
    messages.py    what is said                                lines.py       and over what
    place.py       where a rank stands, and with whom          meeting.py     where they find each other
    groups.py      what ranks say to each other                data_parallel.py    several engines, one front desk
    portion.py     what of a model a rank has
    layers.py      products that are split over ranks          pipeline.py    what a stage hands to the next
    balance.py     which rank has which expert                 expert_parallel.py    tokens to experts, answers back
    load_chart.py  what experts were asked, drawn

(From level 06. No names here: a model is made of the lower rows, an executor of models.)"""
