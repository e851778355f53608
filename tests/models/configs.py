"""The smallest config.json of each kind, as written by hand: what it leaves out is transformers' default."""

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"]}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"]}
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"]}
QWEN2_MOE = {**LLAMA, "architectures": ["Qwen2MoeForCausalLM"]}
QWEN3_MOE = {**LLAMA, "architectures": ["Qwen3MoeForCausalLM"]}
