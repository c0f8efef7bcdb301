"""Questions with one right answer: trivia and sums."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

from training.chat_text import chat
from training.documents import Document


def trivia(root: Path, rng: random.Random) -> Iterator[Document]:
    """Yield the questions of OpenTriviaQA, some with their choices."""
    with (root / "trivia.jsonl").open(encoding="utf-8") as file:
        for line in file:
            item = json.loads(line)
            question, answer = item["question"].strip(), item["answer"].strip()
            if "____" in question or not 1 <= len(answer) <= 80 or len(question) < 20:
                continue
            answers = [answer, f"The answer is {answer}."]
            if rng.random() < 0.35 and len(item.get("choices", [])) > 2:
                choices = "\n".join(f"- {choice}" for choice in item["choices"])
                yield Document("trivia", chat(rng, f"{question}\n{choices}", rng.choice(answers)))
            elif question.endswith("?"):
                yield Document("trivia", chat(rng, question, rng.choice([*answers, f"It is {answer}."])))


def gsm8k(root: Path, rng: random.Random) -> Iterator[Document]:
    """Yield the training problems of GSM8K without their calculator notes."""
    with (root / "train.jsonl").open(encoding="utf-8") as file:
        for line in file:
            item = json.loads(line)
            solution, _, result = re.sub(r"<<[^>]*>>", "", item["answer"]).partition("####")
            answer = f"{solution.strip()}\n\nThe answer is {result.strip()}."
            yield Document("gsm8k", chat(rng, item["question"], answer))
