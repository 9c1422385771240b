"""Two questions about one text: the second resumes where the first left its checkpoint.

python examples/shared_prefix.py [MODEL]
"""

import sys

from holdover import Engine, SamplingParams

NOTES = "The blue box is in the cellar. The red box is in the attic. The green box is in the garden.\n" * 8


def main(model: str = "tiny-gdn") -> None:
    engine = Engine.from_pretrained(model)
    params = SamplingParams(max_tokens=16)
    first = engine.generate(NOTES, params)
    second = engine.generate(NOTES + first.text + "\nWhere is the red box?", params)
    for output in (first, second):
        print(repr(output.text))
        print(f"  {output.cache.state_depth} of {output.cache.prompt_tokens} prompt tokens came from the cache")
        print(f"  {output.cache.reason}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
