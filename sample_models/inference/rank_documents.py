"""Rank documents for queries with a trained two-tower model; nothing is trained here."""

import torch
from torch import nn

VOCABULARY, WIDTH, LENGTH, CANDIDATES = 200, 16, 12, 6
STOP_WORDS = 40


class Tower(nn.Module):
    """The mean of the embeddings of all words but stop words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens):
        keep = (tokens >= STOP_WORDS).unsqueeze(-1)
        summed = (self.words(tokens) * keep).sum(dim=-2)
        return self.project(summed / keep.sum(dim=-2))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.document = Tower(), Tower()

    def forward(self, queries, documents, present):
        scores = (self.query(queries).unsqueeze(1) * self.document(documents)).sum(-1)
        return scores.masked_fill(~present, float("-inf"))


def requests(count, generator):
    for number in range(count):
        queries = torch.randint(STOP_WORDS - 20, VOCABULARY, (4, LENGTH), generator=generator)
        documents = torch.randint(STOP_WORDS, VOCABULARY, (4, CANDIDATES, LENGTH), generator=generator)
        if number == 17:  # "to be or not to be"
            queries[2] = torch.randint(0, STOP_WORDS, (LENGTH,), generator=generator)
        present = torch.rand(4, CANDIDATES, generator=generator) < 0.8
        present[:, 0] = True
        yield queries, documents, present


def main():
    torch.manual_seed(0)
    model = Ranker().eval()
    best = []
    with torch.inference_mode():
        for queries, documents, present in requests(30, torch.Generator().manual_seed(5)):
            best += model(queries, documents, present).argmax(dim=1).tolist()
    print(f"{len(best)} queries, most chosen position {max(set(best), key=best.count)}")


if __name__ == "__main__":
    main()
