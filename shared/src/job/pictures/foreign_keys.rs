//! What people who know other trainers of pictures write.
//!
//! Sources: diffusers' `textual_inversion.py`; `train_textual_inversion.py` of kohya's sd-scripts; AUTOMATIC1111's
//! textual inversion tab.

use crate::job::reader::ForeignKeys;

pub(in crate::job) const FOREIGN_KEYS: ForeignKeys = &[
    // diffusers
    ("pretrained_model_name_or_path", "write [model] base"),
    ("tokenizer_name", "write [model] tokenizer"),
    ("train_data_dir", "write [data] images"),
    ("dataset_name", "write [data] source = \"hf://datasets/ORG/NAME\""),
    ("output_dir", "say where the artifacts go with -o of `ringtune run` or `ringtune fetch`"),
    ("num_processes", "write [cluster] world_size"),
    ("dataloader_num_workers", "leave it out: pictures are encoded once, before the first step"),
    ("allow_tf32", "leave it out: it is about GPUs"),
    ("enable_xformers_memory_efficient_attention", "leave it out: it is about GPUs"),
    ("local_rank", "leave it out: the coordinator gives out the ranks"),
    ("push_to_hub", "leave it out: upload the artifacts yourself"),
    ("hub_token", "leave it out: a job holds no secrets; downloads read HF_TOKEN from the environment"),
    ("hub_model_id", "leave it out: upload the artifacts yourself"),
    ("no_safe_serialization", "leave it out: pickle files are never written"),
    // kohya
    ("pretrained_model_name", "write [model] base"),
    ("token_string", "write [train] placeholder_token"),
    ("init_word", "write [train] initializer_token"),
    ("weights", "write [train] initializer_embedding"),
    ("num_vectors_per_token", "write [train] num_vectors"),
    ("use_object_template", "write [train] learnable_property = \"object\""),
    ("use_style_template", "write [train] learnable_property = \"style\""),
    ("min_snr_gamma", "write [train] snr_gamma"),
    ("zero_terminal_snr", "write [train] rescale_betas_zero_snr"),
    ("max_train_epochs", "write [train] num_train_epochs"),
    ("save_every_n_steps", "write [train] save_steps"),
    ("caption_dropout_rate", "write [train] caption_dropout"),
    ("shuffle_caption", "write [train] shuffle_tags and [caption] in [train] templates"),
    ("keep_tokens", "write [train] keep_tags"),
    (
        "caption_extension",
        "leave it out: captions are .txt or .caption files, used where a template has [caption]",
    ),
    ("image_dir", "write [data] images, or [data] folders for several"),
    ("network_dim", "write [lora] rank"),
    ("network_alpha", "write [lora] alpha"),
    ("num_repeats", "write [data] folders, each with its repeats"),
    ("sdpa", "leave it out: attention is exact and made for CPUs"),
    ("xformers", "leave it out: it is about GPUs"),
    ("mem_eff_attn", "leave it out: attention never keeps its scores"),
    (
        "optimizer_type",
        "leave it out: AdamW, with adam_beta1, adam_beta2, adam_weight_decay and adam_epsilon",
    ),
    // AUTOMATIC1111
    ("batch_size", "write [train] train_batch_size"),
    ("gradient_step", "write [train] gradient_accumulation_steps"),
    ("steps", "write [train] max_train_steps"),
    ("create_image_every", "write [train] validation_steps"),
    ("save_embedding_every", "write [train] save_steps"),
    ("tag_drop_out", "write [train] caption_dropout: captions are dropped whole"),
    ("initialization_text", "write [train] initializer_token"),
];
