"""The kinds of questions there are: generate_until, loglikelihood and multiple_choice, generate_until_multi_round.

A task knows what it asks, for the key; `answer` turns the replies into what the log keeps.
"""
