"""A conversation with a running server (`make serve`), showing after each turn what was cached.

python examples/chat.py [MODEL]
"""

import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

QUESTIONS = ("My name is Ada. What is yours?", "What is my name?", "Thank you.")


def main(model: str = "tiny-gdn") -> None:
    client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="unused")
    messages: list[ChatCompletionMessageParam] = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        reply = client.chat.completions.create(model=model, messages=messages, max_tokens=32)
        answer = reply.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": answer})
        cache = (reply.model_extra or {})["holdover"]["cache"]
        print(f"> {question}\n{answer}\n  [{cache['reason']}]")


if __name__ == "__main__":
    main(*sys.argv[1:2])
