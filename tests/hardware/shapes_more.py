"""Models whose layers keep something else than keys and values: places of weights without weights."""

from __future__ import annotations

from pathlib import Path

from tests.hardware.shapes import Build, Maker

WIDTH, FEED_FORWARD, HEADS, VOCABULARY = 512, 1024, 8, 4096


def _maker(path: Path, architecture: str, layers: int) -> Maker:
    build = Build(architecture, layers=layers, width=WIDTH, vocabulary=VOCABULARY, bare=True)
    maker = Maker(path, build)
    maker.vocabulary(extra=VOCABULARY - 264)
    maker.writer.add_context_length(4096)
    maker.writer.add_embedding_length(WIDTH)
    maker.writer.add_block_count(layers)
    maker.writer.add_feed_forward_length(FEED_FORWARD)
    maker.writer.add_head_count(HEADS)
    maker.writer.add_layer_norm_rms_eps(1e-5)
    maker.matrix("token_embd", VOCABULARY, WIDTH)
    return maker


def _common(maker: Maker, block: str) -> None:
    maker.ones(f"{block}.attn_norm", f"{block}.ffn_norm")
    maker.matrix(f"{block}.ffn_gate", FEED_FORWARD, WIDTH)
    maker.matrix(f"{block}.ffn_up", FEED_FORWARD, WIDTH)
    maker.matrix(f"{block}.ffn_down", WIDTH, FEED_FORWARD)


def hybrid(path: Path) -> Path:
    """Layers with a short convolution alternately with layers of attention."""
    maker = _maker(path, "lfm2", 4)
    maker.writer.add_head_count_kv([0, 2, 0, 2])
    maker.writer.add_uint32("lfm2.shortconv.l_cache", 3)
    maker.writer.add_rope_dimension_count(64)
    maker.writer.add_rope_freq_base(1e6)
    maker.ones("token_embd_norm")
    for layer in range(4):
        block = f"blk.{layer}"
        _common(maker, block)
        if layer % 2 == 0:
            maker.matrix(f"{block}.shortconv.conv", WIDTH, 3)
            maker.matrix(f"{block}.shortconv.in_proj", 3 * WIDTH, WIDTH)
            maker.matrix(f"{block}.shortconv.out_proj", WIDTH, WIDTH)
            continue
        maker.ones(f"{block}.attn_q_norm", f"{block}.attn_k_norm", width=64)
        for part, width in (("q", WIDTH), ("k", 128), ("v", 128), ("output", WIDTH)):
            maker.matrix(f"{block}.attn_{part}", width, WIDTH)
    return maker.write()


def latent_attention(path: Path) -> Path:
    """Keys and values are one small vector for all heads."""
    rope, key, value, latent, query = 32, 64, 64, 128, 192
    maker = _maker(path, "deepseek2", 3)
    writer = maker.writer
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(rope)
    writer.add_key_length(latent + rope)
    writer.add_value_length(latent)
    writer.add_key_length_mla(key + rope)
    writer.add_value_length_mla(value)
    writer.add_kv_lora_rank(latent)
    writer.add_q_lora_rank(query)
    writer.add_leading_dense_block_count(3)
    for add in (writer.add_expert_count, writer.add_expert_used_count, writer.add_expert_shared_count):
        add(0)
    writer.add_expert_feed_forward_length(128)
    writer.add_expert_weights_scale(1.0)
    writer.add_vocab_size(VOCABULARY)
    maker.matrix("output", VOCABULARY, WIDTH)
    maker.ones("output_norm")
    for layer in range(3):
        block = f"blk.{layer}"
        _common(maker, block)
        maker.ones(f"{block}.attn_q_a_norm", width=query)
        maker.ones(f"{block}.attn_kv_a_norm", width=latent)
        maker.matrix(f"{block}.attn_q_a", query, WIDTH)
        maker.matrix(f"{block}.attn_q_b", HEADS * (key + rope), query)
        maker.matrix(f"{block}.attn_kv_a_mqa", latent + rope, WIDTH)
        maker.matrix(f"{block}.attn_k_b", HEADS, latent, key)
        maker.matrix(f"{block}.attn_v_b", HEADS, value, latent)
        maker.matrix(f"{block}.attn_output", WIDTH, HEADS * value)
    return maker.write()
