"""Tensor parallelism in the embedded engine: recurrent mixers split over ranks by heads.

Rank 0 schedules and answers; the others follow it, call by call (`leader`, `follower`). Every rank has all of the
attention, the MLPs and the KV rows, and of each recurrent layer the heads that a placement gives it (`shard`).
"""
