"""Trains a small BERT of transformers from its configuration: no weights and no data are downloaded."""

import time

import torch
from transformers import BertConfig, BertForSequenceClassification

STEPS, BATCH, WORDS, CLASSES = 40, 16, 64, 4

torch.manual_seed(0)
config = BertConfig(
    vocab_size=2000,
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=512,
    num_labels=CLASSES,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
texts = torch.randint(0, config.vocab_size, (STEPS * BATCH, WORDS))
labels = texts[:, 0] % CLASSES

begin = time.perf_counter()
for step in range(STEPS):
    batch = slice(step * BATCH, (step + 1) * BATCH)
    loss = model(input_ids=texts[batch], labels=labels[batch]).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"throughput: {STEPS * BATCH / (time.perf_counter() - begin):.1f} texts/s")
print(f"final loss: {loss.item():.4f}")
