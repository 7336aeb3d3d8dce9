"""Trainers that compete: who meets whom, who wins, what is copied and changed, and how models get there.

`decisions`, `strategies` and `draws` decide, without torch, clock or disk; `rounds` plays; `files` and
`group` are the transports, and `presence` knows which trainers are there.
"""
