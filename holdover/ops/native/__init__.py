"""What a CPU computes in C: the recurrences, the convolution before them, norms and gates.

Torch needs dozens of calls for a recurrent layer, each over memory that the next one reads again. Here a head's state
stays in the nearest cache for a whole sequence and every other tensor is passed once. The sources are compiled with the
machine's C compiler when they are first needed, as Triton compiles its kernels; without a compiler, torch's forms run.
"""
