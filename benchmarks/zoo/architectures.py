"""The architectures: how each is made tiny, what it reads, and how many attentions it promises."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Sizes = Mapping[str, int]
Numbers = Mapping[str, Any]
"""Arguments of a configuration."""

SIZES: tuple[Sizes, Sizes] = (
    {"batch": 2, "length": 10, "target": 6, "past": 7, "frames": 20, "samples": 4000, "side": 64},
    {"batch": 3, "length": 13, "target": 9, "past": 5, "frames": 20, "samples": 5000, "side": 96},
)
"""The two sizes at which outputs are compared; the exporters see the first."""

WORDS, CLASSES = 99, 10
"""Size of every vocabulary, and of every set of classes."""


@dataclass(frozen=True)
class Input:
    """One input: its kind (`ids`, `classes`, `mask` or `floats`) and shape.

    Dimensions are numbers, names from `SIZES`, or sums of names ("past+length").
    """

    name: str
    kind: str
    shape: tuple[int | str, ...]

    def at(self, sizes: Sizes) -> tuple[int, ...]:
        """The shape in numbers."""
        return tuple(
            dim if isinstance(dim, int) else sum(sizes[part] for part in dim.split("+"))
            for dim in self.shape
        )


@dataclass(frozen=True)
class Past:
    """The cache that a decoder takes: pairs of `[batch, heads, past, dim]`, one per layer.

    With `source` there is another pair per layer, of that length: keys and values of the encoder.
    """

    layers: int
    heads: int
    dim: int
    value_dim: int | None = None
    source: str | None = None

    def inputs(self) -> tuple[Input, ...]:
        """The tensors, layer by layer; those of the encoder after those of the decoder."""
        lengths = ["past"] if self.source is None else ["past", self.source]
        return tuple(
            Input(f"past_{length}_{layer}_{what}", "floats", ("batch", self.heads, length, dim))
            for length in lengths
            for layer in range(self.layers)
            for what, dim in (("key", self.dim), ("value", self.value_dim or self.dim))
        )


@dataclass(frozen=True)
class Architecture:
    """One row: a tiny model, in library `library`, of class `model`, and its promise.

    `config` are the arguments of the class `config_class`; where that is empty, of the model's own
    class. `blocks` is the number of attentions that the configuration promises: layers x (self +
    cross). With `past` the model can also start from a cache. `attentions` are the implementations
    it has.
    """

    name: str
    domain: str
    config_class: str
    config: Numbers
    inputs: tuple[Input, ...]
    blocks: int
    model: str = "AutoModel"
    library: str = "transformers"
    past: Past | None = None
    attentions: tuple[str, ...] = ("eager", "sdpa")


def _ids(name: str = "input_ids", length: str = "length") -> Input:
    return Input(name, "ids", ("batch", length))


def _mask() -> Input:
    return Input("attention_mask", "mask", ("batch", "length"))


def _pixels(side: int | str = 32, channels: int = 3) -> Input:
    return Input("pixel_values", "floats", ("batch", channels, side, side))


TOKENS = (_ids(), _mask())
PAIRS = (*TOKENS, _ids("decoder_input_ids", "target"))
IMAGE = (_pixels(),)
WAVE = (Input("input_values", "floats", ("batch", "samples")),)

BERT: Numbers = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
}
LLAMA: Numbers = {**BERT, "num_key_value_heads": 2, "pad_token_id": 0}
GPT2: Numbers = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
BART: Numbers = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
T5: Numbers = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 37,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
VIT: Numbers = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "image_size": 32,
    "patch_size": 8,
}
SWIN: Numbers = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
SPEECH: Numbers = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "conv_dim": (32, 32, 32),
    "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 8, 8),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "num_feat_extract_layers": 3,
}
EAGER = ("eager",)


def _encoder(name: str, config: str, more: Numbers | None = None, **row: Any) -> Architecture:
    return Architecture(
        name, "encoder", config, {**BERT, **(more or {})}, TOKENS, row.pop("blocks", 2), **row
    )


def _decoder(
    name: str, config: str, more: Numbers | None = None, *, base: Numbers = LLAMA, **row: Any
) -> Architecture:
    past = row.pop("past", Past(2, 2 if base is LLAMA else 4, 8))
    return Architecture(
        name, "decoder", config, {**base, **(more or {})}, TOKENS, 2, past=past, **row
    )


def _pair(
    name: str, config: str, more: Numbers | None = None, *, base: Numbers = BART, **row: Any
) -> Architecture:
    past = row.pop("past", Past(2, 4, 8, source="length"))
    numbers, blocks = {**base, **(more or {})}, row.pop("blocks", 6)
    return Architecture(name, "encoder-decoder", config, numbers, PAIRS, blocks, past=past, **row)


def _vision(name: str, config: str, more: Numbers | None = None, **row: Any) -> Architecture:
    numbers = {**row.pop("base", VIT), **(more or {})}
    inputs = row.pop("inputs", IMAGE)
    return Architecture(name, "vision", config, numbers, inputs, row.pop("blocks", 2), **row)


def _audio(name: str, config: str, more: Numbers | None = None, **row: Any) -> Architecture:
    numbers = {**row.pop("base", SPEECH), **(more or {})}
    inputs = row.pop("inputs", WAVE)
    return Architecture(name, "audio", config, numbers, inputs, row.pop("blocks", 2), **row)


def _diffusion(
    model: str, config: Numbers, inputs: tuple[Input, ...], blocks: int, **row: Any
) -> Architecture:
    name = row.pop("name", model)
    return Architecture(
        name, "diffusion", "", config, inputs, blocks, model, library="diffusers", **row
    )


ENCODERS = (
    _encoder("bert", "BertConfig"),
    _encoder("roberta", "RobertaConfig", {"pad_token_id": 1}),
    _encoder("xlm-roberta", "XLMRobertaConfig", {"pad_token_id": 1}),
    _encoder("distilbert", "DistilBertConfig", {"hidden_dim": 37}),
    _encoder("albert", "AlbertConfig", {"embedding_size": 16}),
    _encoder("electra", "ElectraConfig", {"embedding_size": 16}),
    _encoder(
        "deberta",
        "DebertaConfig",
        {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 16},
        attentions=EAGER,
    ),
    _encoder(
        "deberta-v2",
        "DebertaV2Config",
        {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 8,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
        },
        attentions=EAGER,
    ),
    _encoder("mpnet", "MPNetConfig", attentions=EAGER),
    _encoder(
        "modernbert",
        "ModernBertConfig",
        {"num_hidden_layers": 3, "pad_token_id": 0, "local_attention": 8},
        blocks=3,
    ),
    Architecture(
        "xlnet",
        "encoder",
        "XLNetConfig",
        {"vocab_size": WORDS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37},
        TOKENS,
        2,
        attentions=EAGER,
    ),
    _encoder("roformer", "RoFormerConfig", attentions=EAGER),
    _encoder("convbert", "ConvBertConfig", attentions=EAGER),
    _encoder(
        "squeezebert",
        "SqueezeBertConfig",
        {"embedding_size": 32, "intermediate_size": 36},
        attentions=EAGER,
    ),
    _encoder("esm", "EsmConfig", {"pad_token_id": 1, "position_embedding_type": "rotary"}),
    Architecture(
        "funnel",
        "encoder",
        "FunnelConfig",
        {
            "vocab_size": WORDS,
            "block_sizes": [1, 1],
            "block_repeats": [1, 1],
            "num_decoder_layers": 1,
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 37,
        },
        TOKENS,
        3,
        model="FunnelModel",
        attentions=EAGER,
    ),
    _encoder("nomic-bert", "NomicBertConfig"),
)

DECODERS = (
    _decoder("gpt2", "GPT2Config", base=GPT2),
    _decoder(
        "gpt-neo",
        "GPTNeoConfig",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 64,
        },
        base={},
        attentions=EAGER,
    ),
    _decoder("gptj", "GPTJConfig", {"rotary_dim": 4}, base=GPT2),
    _decoder("gpt-neox", "GPTNeoXConfig", base=BERT),
    _decoder("gpt-bigcode", "GPTBigCodeConfig", base=GPT2, past=Past(2, 1, 8)),
    _decoder("codegen", "CodeGenConfig", {"rotary_dim": 4}, base=GPT2),
    _decoder("opt", "OPTConfig", {"ffn_dim": 37, "word_embed_proj_dim": 32}, base=BERT),
    _decoder(
        "bloom",
        "BloomConfig",
        {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
        base={},
        attentions=EAGER,
    ),
    _decoder(
        "falcon",
        "FalconConfig",
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        base=BERT,
        past=Past(2, 4, 8),
    ),
    _decoder("falcon-alibi", "FalconConfig", {"alibi": True, "multi_query": False}, base=BERT),
    _decoder("llama", "LlamaConfig"),
    _decoder("mistral", "MistralConfig", {"sliding_window": 8}),
    _decoder(
        "mixtral",
        "MixtralConfig",
        {
            "num_local_experts": 2,
            "sliding_window": None,
            "intermediate_size": 32,
            "experts_implementation": "batched_mm",
        },
    ),
    _decoder("qwen2", "Qwen2Config"),
    _decoder("qwen3", "Qwen3Config", {"head_dim": 8}),
    _decoder("gemma", "GemmaConfig", {"head_dim": 8, "num_key_value_heads": 1}, past=Past(2, 1, 8)),
    _decoder(
        "gemma2",
        "Gemma2Config",
        {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8},
        attentions=EAGER,
    ),
    _decoder(
        "gemma3",
        "Gemma3TextConfig",
        {
            "head_dim": 8,
            "sliding_window": 8,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    _decoder("phi", "PhiConfig", base=BERT),
    _decoder("phi3", "Phi3Config"),
    _decoder("granite", "GraniteConfig", {"attention_multiplier": 0.2}),
    _decoder("olmo", "OlmoConfig"),
    _decoder("olmo2", "Olmo2Config"),
    _decoder("stablelm", "StableLmConfig"),
    _decoder("starcoder2", "Starcoder2Config"),
    _decoder("cohere", "CohereConfig"),
    _decoder(
        "mpt",
        "MptConfig",
        {"vocab_size": WORDS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
        base={},
        attentions=EAGER,
    ),
    _decoder(
        "gpt-oss",
        "GptOssConfig",
        {
            "head_dim": 8,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "sliding_window": 8,
            "intermediate_size": 32,
            "experts_implementation": "batched_mm",
        },
        attentions=EAGER,
    ),
    _decoder(
        "deepseek-v3",
        "DeepseekV3Config",
        {
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 2,
            "n_group": 1,
            "topk_group": 1,
            "n_routed_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
        },
        past=Past(2, 1, 16, 4),
    ),
    _decoder("glm", "GlmConfig", {"head_dim": 8}),
    _decoder("smollm3", "SmolLM3Config"),
    _decoder("biogpt", "BioGptConfig", base=BERT),
)

PAIRED = (
    _pair("t5", "T5Config", base=T5, attentions=EAGER),
    _pair("mt5", "MT5Config", base=T5, attentions=EAGER),
    _pair("bart", "BartConfig"),
    _pair("mbart", "MBartConfig"),
    _pair("pegasus", "PegasusConfig"),
    _pair("marian", "MarianConfig"),
    _pair("m2m-100", "M2M100Config"),
    _pair("blenderbot", "BlenderbotConfig"),
    _pair(
        "prophetnet",
        "ProphetNetConfig",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 37,
            "decoder_ffn_dim": 37,
            "max_position_embeddings": 64,
            "ngram": 2,
        },
        base={},
        blocks=8,  # the decoder attends to itself twice: in the main and in the predicted stream
        past=None,
        attentions=EAGER,
    ),
)

VISION = (
    _vision("vit", "ViTConfig"),
    _vision("deit", "DeiTConfig"),
    _vision("beit", "BeitConfig", {"use_relative_position_bias": True}),
    _vision("data2vec-vision", "Data2VecVisionConfig", {"use_shared_relative_position_bias": True}),
    _vision("swin", "SwinConfig", base=SWIN, blocks=4),
    _vision("swinv2", "Swinv2Config", base=SWIN, blocks=4, attentions=EAGER),
    _vision("dinov2", "Dinov2Config", {"mlp_ratio": 2}, inputs=(_pixels("side"),)),
    _vision("dinov3", "DINOv3ViTConfig", {"num_register_tokens": 2}),
    _vision("siglip", "SiglipVisionConfig", model="SiglipVisionModel", blocks=3),
    Architecture(
        "clip",
        "vision",
        "CLIPConfig",
        {
            "text_config": {**BERT, "projection_dim": 16},
            "vision_config": {**VIT, "projection_dim": 16},
            "projection_dim": 16,
        },
        (*TOKENS, *IMAGE),
        4,
    ),
    _vision(
        "segformer",
        "SegformerConfig",
        {
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [8, 16, 24, 32],
            "num_attention_heads": [1, 2, 2, 4],
            "sr_ratios": [4, 2, 1, 1],
        },
        base={},
        blocks=4,
        inputs=(_pixels("side"),),
        attentions=EAGER,
    ),
    _vision(
        "detr",
        "DetrConfig",
        {
            **{key: value for key, value in BART.items() if key != "vocab_size"},
            "num_queries": 5,
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "backbone_config": {
                "model_type": "resnet",
                "embedding_size": 8,
                "hidden_sizes": [8, 8, 8, 16],
                "depths": [1, 1, 1, 1],
                "out_features": ["stage4"],
            },
        },
        base={},
        blocks=6,
        inputs=(_pixels(64),),
        attentions=EAGER,
    ),
    _vision("yolos", "YolosConfig", {"image_size": [32, 32], "num_detection_tokens": 5}),
    _vision(
        "sam",
        "SamVisionConfig",
        {"mlp_dim": 37, "output_channels": 16, "window_size": 3, "global_attn_indexes": [1]},
        model="SamVisionModel",
    ),
    _vision(
        "pvt",
        "PvtConfig",
        {
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [8, 16, 24, 32],
            "num_attention_heads": [1, 2, 2, 4],
            "image_size": 64,
            "num_encoder_blocks": 4,
        },
        base={},
        blocks=4,
        inputs=(_pixels(64),),
        attentions=EAGER,
    ),
    _vision(
        "hiera",
        "HieraConfig",
        {
            "embed_dim": 8,
            "image_size": [32, 32],
            "patch_size": [3, 3],
            "patch_stride": [2, 2],
            "patch_padding": [1, 1],
            "depths": [1, 1],
            "num_heads": [1, 2],
            "masked_unit_size": [4, 4],
            "num_query_pool": 1,
            "query_stride": [2, 2],
            "embed_dim_multiplier": 2.0,
            "masked_unit_attention": [True, False],
        },
        base={},
        attentions=EAGER,
    ),
    _vision(
        "mobilevit",
        "MobileViTConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 16, 16],
            "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16],
            "num_attention_heads": 4,
            "expand_ratio": 2.0,
        },
        base={},
        blocks=9,
        inputs=(_pixels(64),),
        attentions=EAGER,
    ),
    _vision(
        "levit",
        "LevitConfig",
        {
            "image_size": 64,
            "hidden_sizes": [16, 24, 32],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 3, 4, 2, 2]],
        },
        base={},
        blocks=5,
        inputs=(_pixels(64),),
        attentions=EAGER,
    ),
    _vision(
        "videomae",
        "VideoMAEConfig",
        {"num_frames": 4, "tubelet_size": 2},
        inputs=(Input("pixel_values", "floats", ("batch", 4, 3, 32, 32)),),
    ),
)

AUDIO = (
    _audio(
        "whisper",
        "WhisperConfig",
        {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32},
        base=BART,
        blocks=6,
        inputs=(
            Input("input_features", "floats", ("batch", 8, 40)),
            _ids("decoder_input_ids", "target"),
        ),
        past=Past(2, 4, 8, source="frames"),
    ),
    _audio("wav2vec2", "Wav2Vec2Config"),
    _audio("hubert", "HubertConfig"),
    _audio(
        "wavlm", "WavLMConfig", {"num_buckets": 16, "max_bucket_distance": 32}, attentions=EAGER
    ),
    _audio(
        "wav2vec2-conformer",
        "Wav2Vec2ConformerConfig",
        {"position_embeddings_type": "relative", "conv_depthwise_kernel_size": 7},
        attentions=EAGER,
    ),
    _audio("sew", "SEWConfig", {"squeeze_factor": 2}),
    _audio("unispeech", "UniSpeechConfig"),
    _audio(
        "wav2vec2-bert",
        "Wav2Vec2BertConfig",
        {
            "feature_projection_input_dim": 16,
            "conv_depthwise_kernel_size": 7,
            "position_embeddings_type": "relative_key",
            "left_max_position_embeddings": 8,
            "right_max_position_embeddings": 4,
        },
        base={
            key: SPEECH[key]
            for key in (
                "vocab_size",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
            )
        },
        inputs=(Input("input_features", "floats", ("batch", "length", 16)), _mask()),
        attentions=EAGER,
    ),
    _audio(
        "ast",
        "ASTConfig",
        {
            "patch_size": 8,
            "max_length": 24,
            "num_mel_bins": 16,
            "frequency_stride": 6,
            "time_stride": 6,
        },
        base={key: VIT[key] for key in VIT if key != "image_size"},
        inputs=(Input("input_values", "floats", ("batch", 24, 16)),),
    ),
    _audio(
        "speech-to-text",
        "Speech2TextConfig",
        {
            "input_feat_per_channel": 8,
            "input_channels": 1,
            "max_source_positions": 64,
            "max_target_positions": 64,
            "conv_channels": 16,
        },
        base=BART,
        blocks=6,
        attentions=EAGER,
        inputs=(
            Input("input_features", "floats", ("batch", 40, 8)),
            _ids("decoder_input_ids", "target"),
        ),
    ),
    _audio(
        "moonshine",
        "MoonshineConfig",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "intermediate_size": 37,
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
            "pad_token_id": 0,
            "decoder_start_token_id": 1,
        },
        base={},
        blocks=6,
        inputs=(*WAVE, _ids("decoder_input_ids", "target")),
    ),
)

LATENT = Input("sample", "floats", ("batch", 4, 16, 16))
NOISY = Input("hidden_states", "floats", ("batch", 4, 8, 8))
TIME = Input("timestep", "floats", ("batch",))
TEXT = Input("encoder_hidden_states", "floats", ("batch", "length", 32))
POOLED = Input("pooled_projections", "floats", ("batch", 16))

DIFFUSION = (
    _diffusion(
        "UNet2DConditionModel",
        {
            "sample_size": 16,
            "block_out_channels": (16, 32),
            "layers_per_block": 1,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
            "norm_num_groups": 8,
        },
        (LATENT, TIME, TEXT),
        8,
        name="unet-condition",
    ),
    _diffusion(
        "UNet2DModel",
        {
            "sample_size": 16,
            "in_channels": 4,
            "out_channels": 4,
            "block_out_channels": (16, 32),
            "layers_per_block": 1,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 8,
            "norm_num_groups": 8,
        },
        (LATENT, TIME),
        4,
        name="unet",
    ),
    _diffusion(
        "AutoencoderKL",
        {
            "block_out_channels": (16,),
            "norm_num_groups": 8,
            "latent_channels": 4,
            "sample_size": 16,
        },
        (Input("sample", "floats", ("batch", 3, 16, 16)),),
        2,
        name="autoencoder-kl",
    ),
    _diffusion(
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 2,
            "sample_size": 8,
            "in_channels": 4,
            "norm_type": "ada_norm_zero",
            "num_embeds_ada_norm": CLASSES,
        },
        (NOISY, TIME, Input("class_labels", "classes", ("batch",))),
        2,
        name="dit",
    ),
    _diffusion(
        "PixArtTransformer2DModel",
        {
            "num_attention_heads": 4,
            "attention_head_dim": 8,
            "num_layers": 2,
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 8,
            "cross_attention_dim": 32,
            "caption_channels": 32,
            "use_additional_conditions": False,
        },
        (NOISY, TIME, TEXT),
        4,
        name="pixart",
    ),
    _diffusion(
        "SD3Transformer2DModel",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "pooled_projection_dim": 16,
            "out_channels": 4,
            "pos_embed_max_size": 8,
        },
        (NOISY, TIME, TEXT, POOLED),
        2,
        name="sd3",
        attentions=("sdpa",),
    ),
    _diffusion(
        "FluxTransformer2DModel",
        {
            "patch_size": 1,
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 32,
            "pooled_projection_dim": 16,
            "axes_dims_rope": (4, 4, 8),
        },
        (
            Input("hidden_states", "floats", ("batch", 16, 4)),
            TIME,
            TEXT,
            POOLED,
            Input("img_ids", "floats", (16, 3)),
            Input("txt_ids", "floats", ("length", 3)),
        ),
        2,
        name="flux",
        attentions=("sdpa",),
    ),
    _diffusion(
        "AuraFlowTransformer2DModel",
        {
            "sample_size": 8,
            "patch_size": 2,
            "in_channels": 4,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 32,
            "out_channels": 4,
            "pos_embed_max_size": 16,
        },
        (NOISY, TIME, TEXT),
        2,
        name="aura-flow",
        attentions=("sdpa",),
    ),
    _diffusion(
        "WanTransformer3DModel",
        {
            "patch_size": (1, 2, 2),
            "num_attention_heads": 4,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 32,
            "freq_dim": 16,
            "ffn_dim": 37,
            "num_layers": 2,
            "rope_max_seq_len": 32,
        },
        (Input("hidden_states", "floats", ("batch", 4, 2, 8, 8)), TIME, TEXT),
        4,
        name="wan",
        attentions=("sdpa",),
    ),
)

ARCHITECTURES = (*ENCODERS, *DECODERS, *PAIRED, *VISION, *AUDIO, *DIFFUSION)


def named(name: str) -> Architecture:
    """The row with this name."""
    return next(row for row in ARCHITECTURES if row.name == name)
