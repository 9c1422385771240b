"""What a CPU computes in C: the recurrences, the convolution before them, norms, gates, and decode between them.

Torch needs dozens of calls for a recurrent layer, each over memory that the next one reads again. Here a head's state
stays in the nearest cache for a whole sequence and every other tensor is passed once; for one token, a recurrent layer
between its projections, an MLP and attention are one call each. The sources are compiled with the
machine's C compiler when they are first needed, as Triton compiles its kernels; without a compiler, torch's forms run.
"""
