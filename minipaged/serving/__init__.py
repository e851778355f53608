"""Who is listening: many clients at once, over HTTP, in front of one engine.

    connection, doorway    what reaches us, and whether it may       bodies, protocol, structure    what it asks for
    app, frontend, gate    routes, answers, places                   reading, answers       to tokens, and back
    completions, chat_completions, scores    the two shapes          errors, metrics        what went wrong; how it went
    settings, server       from a command to an address, from a signal to nothing

OpenAI's HTTP API, with vLLM's additions. (From level 08.)"""
