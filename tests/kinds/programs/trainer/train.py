import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)
small = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=64, hidden_size=32, **small))
data = [{"input_ids": torch.randint(0, 64, (16,)), "labels": number % 2} for number in range(128)]
arguments = TrainingArguments("out", num_train_epochs=2, per_device_train_batch_size=8, logging_steps=4)
Trainer(model, arguments, train_dataset=data).train()
