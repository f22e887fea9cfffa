//! The options of kohya's `train_network.py`, and of its `network_args` and `optimizer_args`.
//!
//! Sources: `setup_parser` of `train_network.py` and what it calls in `library/` (`train_util.py`, `config_util.py`,
//! `custom_train_functions.py`, `deepspeed_utils.py`, `sai_model_spec.py`, `utils.py`); `create_network` of
//! `networks/lora.py`; `get_optimizer` of `library/train_util.py`.

use super::super::{
    network, network_folders,
    options::{
        BICUBIC,
        Becomes::{By, Key, KeyBeside, LeftOut, Noted, Only, Refused, Sets},
        EIGHT_BITS, GPUS, Row,
        Takes::{Nothing, Number, Text, Words},
        reader,
    },
};

const NO_TRACKER: &str = "nothing is sent to a tracker; the job leaves TensorBoard's events";
const CARD: &str = "README.md beside the result says how it was trained";
const UPLOADS: &str = "upload the output folder yourself: leave it out";
const SAVED_BY_STEPS: &str = "files are saved by steps, and not by passes: give --save_every_n_steps";
const ALL_KEPT: &str =
    "every saved file is kept; for checkpoints there is --set train.checkpoints_total_limit=N";
const CHECKPOINTS: &str = "checkpoints are kept anyway, every 500 steps or --set train.checkpointing_steps=N";
const PREVIEWS: &str = "pictures are drawn of one prompt: --set train.validation_prompt='a prompt'";
const HELD_OUT: &str = "nothing is held out of the pictures: give --set train.validation_loss_steps=N for a loss on held-out draws";
const ALL_THE_SAME: &str = "all blocks of the UNet have one rank, one alpha and one rate: leave it out";
const SCHEDULES: &str = "the schedules are constant, linear, cosine, cosine_with_restarts, polynomial and \
    constant_with_warmup, without other options: leave it out";
const CAPTIONS: &str = "write into the captions what they are to be: leave it out";
const NO_SUCH_LOSS: &str = "the loss is the squared error: leave it out";
const NO_SUCH_NOISE: &str = "the noise is normal, with --noise_offset at most: leave it out";

pub(in crate::diffusers_arguments) const MODEL: &[Row] = &[
    ("v2", Nothing, LeftOut("the model's files say which it is")),
    ("v_parameterization", Nothing, Sets("model", "prediction_type", "\"v_prediction\"")),
    ("tokenizer_cache_dir", Text, LeftOut("the tokenizer is the model's own")),
    ("vae", Text, Refused("the VAE is the model's own: leave it out")),
    ("no_half_vae", Nothing, LeftOut("nothing is computed in fp16")),
    ("clip_skip", Number, Only(&["1"], "prompts are encoded as by the model's own pipeline: leave it out")),
    ("max_token_length", Number, Refused("a prompt has 75 tokens: leave it out")),
];

pub(in crate::diffusers_arguments) const DATA: &[Row] = &[
    ("train_data_dir", Text, Noted("data.images")),
    ("reg_data_dir", Text, By("data.class_images", network_folders::class_pictures)),
    ("prior_loss_weight", Number, KeyBeside("train", "prior_loss_weight", "reg_data_dir")),
    (
        "in_json dataset_config dataset_class config_file",
        Text,
        By("data.images", network_folders::other_data),
    ),
    ("dataset_repeats", Number, LeftOut("it has no effect without --in_json")),
    ("resolution", Text, By("train.resolution", network::resolution)),
    ("enable_bucket", Nothing, Key("train", "enable_bucket")),
    ("min_bucket_reso", Number, Key("train", "min_bucket_reso")),
    ("max_bucket_reso", Number, Key("train", "max_bucket_reso")),
    ("bucket_reso_steps", Number, Key("train", "bucket_reso_steps")),
    ("bucket_no_upscale", Nothing, Key("train", "bucket_no_upscale")),
    ("resize_interpolation", Text, LeftOut(BICUBIC)),
    ("flip_aug", Nothing, Key("train", "random_flip")),
    (
        "color_aug random_crop",
        Nothing,
        Refused("the middle of every picture is shown as it is: leave it out"),
    ),
    ("face_crop_aug_range", Text, Refused("the middle of every picture is shown: leave it out")),
    ("alpha_mask", Nothing, Key("data", "alpha_mask")),
    ("masked_loss", Nothing, By("", network_folders::needs_masks)),
    ("conditioning_data_dir", Text, KeyBeside("data", "masks", "masked_loss")),
    ("cache_info cache_latents cache_latents_to_disk skip_cache_check", Nothing, LeftOut(LATENTS)),
    ("vae_batch_size", Number, LeftOut(LATENTS)),
    ("max_data_loader_n_workers", Number, LeftOut(LATENTS)),
    ("persistent_data_loader_workers", Nothing, LeftOut(LATENTS)),
    ("debug_dataset", Nothing, Refused("`ringtune doctor` shows what a job would train on: leave it out")),
];

const LATENTS: &str = "latents are computed once, before the first step that shows the picture";

pub(in crate::diffusers_arguments) const CAPTION: &[Row] = &[
    ("shuffle_caption", Nothing, Key("train", "shuffle_tags")),
    ("keep_tokens", Number, Key("train", "keep_tags")),
    ("caption_dropout_rate", Number, Key("train", "caption_dropout")),
    ("caption_dropout_every_n_epochs caption_tag_dropout_rate", Number, Only(&["0"], CAPTIONS)),
    ("caption_prefix caption_suffix", Text, Noted("train.templates")),
    ("caption_extension caption_extention", Text, Only(&[".txt", ".caption"], "rename the files")),
    ("caption_separator", Text, Only(&[","], CAPTIONS)),
    ("keep_tokens_separator secondary_separator", Text, Only(&[""], CAPTIONS)),
    ("enable_wildcard weighted_captions", Nothing, Refused(CAPTIONS)),
    ("token_warmup_step", Number, Only(&["0"], CAPTIONS)),
    ("token_warmup_min", Number, LeftOut("it has no effect without --token_warmup_step")),
];

pub(in crate::diffusers_arguments) const NETWORK: &[Row] = &[
    ("network_module", Text, Only(&["networks.lora"], "only its adapters are known")),
    ("network_dim", Number, Key("lora", "rank")),
    ("network_alpha", Number, Key("lora", "alpha")),
    (
        "network_dropout",
        Number,
        Refused(
            "it drops what the first matrix gives, and lora.dropout what it takes, as PEFT does: leave it out, and set that in the \
             job file if it will do",
        ),
    ),
    ("network_args", Words, By("", network::network_args)),
    ("network_weights", Text, Key("lora", "initializer_lora")),
    ("dim_from_weights", Nothing, Refused("give the file's rank as --network_dim: leave it out")),
    ("unet_lr", Number, Noted("train.learning_rate")),
    ("text_encoder_lr", Words, Noted("train.text_encoder_learning_rate")),
    ("network_train_unet_only", Nothing, Noted("train.train_text_encoder")),
    ("network_train_text_encoder_only", Nothing, Refused("the UNet is always trained: leave it out")),
    ("scale_weight_norms", Number, Refused("adapters are never scaled down: leave it out")),
    ("base_weights base_weights_multiplier", Words, Refused("merge them into the model first: leave it out")),
];

pub(in crate::diffusers_arguments) const NETWORK_ARGS: &[Row] = &[
    ("conv_dim", Number, Key("lora", "conv_rank")),
    ("conv_alpha", Number, Key("lora", "conv_alpha")),
    ("rank_dropout", Number, Key("lora", "rank_dropout")),
    ("module_dropout", Number, Only(&["0"], "whole adapters are never left out: leave it out")),
    (
        "block_dims block_alphas conv_block_dims conv_block_alphas down_lr_weight mid_lr_weight up_lr_weight \
         block_lr_zero_threshold",
        Text,
        Refused(ALL_THE_SAME),
    ),
    (
        "loraplus_lr_ratio loraplus_unet_lr_ratio loraplus_text_encoder_lr_ratio",
        Number,
        Refused("both matrices of an adapter have one rate: leave it out"),
    ),
];

pub(in crate::diffusers_arguments) const STEPS: &[Row] = &[
    ("max_train_epochs", Number, Key("train", "num_train_epochs")),
    ("optimizer_type", Text, By("", network::optimizer)),
    ("optimizer_args", Words, By("", network::optimizer_args)),
    ("use_8bit_adam", Nothing, LeftOut(EIGHT_BITS)),
    ("use_lion_optimizer fused_backward_pass", Nothing, Refused("the optimizer is AdamW: leave it out")),
    ("max_grad_norm", Number, Key("train", "max_grad_norm")),
    ("lr_warmup_steps", Text, By("train.lr_warmup_steps", network::warmup)),
    ("lr_scheduler_num_cycles", Number, Key("train", "lr_num_cycles")),
    ("lr_decay_steps", Number, Only(&["0"], SCHEDULES)),
    ("lr_scheduler_power", Number, Only(&["1"], SCHEDULES)),
    ("lr_scheduler_type", Text, Only(&[""], SCHEDULES)),
    ("lr_scheduler_args", Words, Refused(SCHEDULES)),
    ("lr_scheduler_timescale lr_scheduler_min_lr_ratio", Number, Refused(SCHEDULES)),
    (
        "initial_epoch initial_step",
        Number,
        Refused("a job goes on from its checkpoints by itself: leave it out"),
    ),
    ("skip_until_initial_step", Nothing, LeftOut("it has no effect without --initial_step")),
    (
        "full_fp16 full_bf16",
        Nothing,
        LeftOut("adapters and their gradients are fp32; fewer bits only save memory"),
    ),
    ("fp8_base fp8_base_unet", Nothing, LeftOut("8 bits only save memory")),
];

pub(in crate::diffusers_arguments) const OPTIMIZER_ARGS: &[Row] = &[
    ("weight_decay", Number, Key("train", "adam_weight_decay")),
    ("betas", Text, By("train.adam_beta1", network::betas)),
    ("eps", Number, Key("train", "adam_epsilon")),
];

pub(in crate::diffusers_arguments) const LOSS: &[Row] = &[
    ("min_snr_gamma", Number, Key("train", "snr_gamma")),
    ("noise_offset", Number, Key("train", "noise_offset")),
    ("zero_terminal_snr", Nothing, Key("train", "rescale_betas_zero_snr")),
    ("noise_offset_random_strength ip_noise_gamma_random_strength", Nothing, Refused(NO_SUCH_NOISE)),
    ("multires_noise_iterations ip_noise_gamma adaptive_noise_scale", Number, Only(&["0"], NO_SUCH_NOISE)),
    ("multires_noise_discount", Number, LeftOut("it has no effect without --multires_noise_iterations")),
    ("min_timestep", Number, Only(&["0"], "noise of all timesteps is shown: leave it out")),
    ("max_timestep", Number, Only(&["1000"], "noise of all timesteps is shown: leave it out")),
    ("loss_type", Text, Only(&["l2"], NO_SUCH_LOSS)),
    ("huber_schedule", Text, LeftOut("it has no effect without --loss_type huber")),
    ("huber_c huber_scale", Number, LeftOut("it has no effect without --loss_type huber")),
    ("v_pred_like_loss", Number, Refused(NO_SUCH_LOSS)),
    ("scale_v_pred_loss_like_noise_pred debiased_estimation_loss", Nothing, Refused(NO_SUCH_LOSS)),
];

pub(in crate::diffusers_arguments) const OUTPUT: &[Row] = &[
    ("output_name", Text, Key("", "name")),
    ("save_model_as", Text, Only(&["safetensors"], "pickle files are never written: leave it out")),
    ("save_precision", Text, LeftOut("files hold fp32, which all programs read")),
    ("save_every_n_steps", Number, Key("train", "save_steps")),
    ("save_every_n_epochs save_n_epoch_ratio", Number, LeftOut(SAVED_BY_STEPS)),
    ("save_last_n_epochs save_last_n_epochs_state", Number, LeftOut(ALL_KEPT)),
    ("save_last_n_steps save_last_n_steps_state", Number, LeftOut(ALL_KEPT)),
    ("save_state save_state_on_train_end", Nothing, LeftOut(CHECKPOINTS)),
    (
        "resume",
        Text,
        Refused("the script's states are not read; give --set train.resume_from_checkpoint=latest"),
    ),
    ("no_metadata", Nothing, LeftOut("the files hold no time, path or name of a machine")),
    (
        "training_comment metadata_title metadata_author metadata_description metadata_license metadata_tags \
         metadata_usage_hint metadata_thumbnail metadata_merged_from metadata_trigger_phrase metadata_preprocessor \
         metadata_is_negative_embedding",
        Text,
        LeftOut(CARD),
    ),
    (
        "huggingface_repo_id huggingface_repo_type huggingface_path_in_repo huggingface_token \
         huggingface_repo_visibility",
        Text,
        Refused(UPLOADS),
    ),
    ("save_state_to_huggingface resume_from_huggingface async_upload", Nothing, Refused(UPLOADS)),
    ("output_config", Nothing, Refused("--print-job prints the job file: leave it out")),
    ("log_with", Text, By("train.report_to", reader::report_to)),
    (
        "log_prefix log_tracker_name log_tracker_config wandb_run_name wandb_api_key",
        Text,
        LeftOut(NO_TRACKER),
    ),
    ("log_config console_log_simple", Nothing, LeftOut("job.log is the job's log")),
    ("console_log_level console_log_file", Text, LeftOut("job.log is the job's log")),
    ("sample_every_n_steps", Number, Key("train", "validation_steps")),
    ("sample_every_n_epochs", Number, LeftOut("pictures are drawn by steps: give --sample_every_n_steps")),
    ("sample_at_first", Nothing, LeftOut("the first pictures are drawn after some steps")),
    ("sample_prompts", Text, LeftOut(PREVIEWS)),
    ("sample_sampler", Text, LeftOut("pictures are drawn with DPM-Solver++ (2M)")),
    ("validation_split", Number, Only(&["0"], HELD_OUT)),
    ("validation_seed validate_every_n_steps validate_every_n_epochs", Number, LeftOut(WITHOUT_SPLIT)),
    ("max_validation_steps", Number, LeftOut(WITHOUT_SPLIT)),
];

const WITHOUT_SPLIT: &str = "it has no effect without --validation_split";

pub(in crate::diffusers_arguments) const MACHINE: &[Row] = &[
    ("mem_eff_attn xformers sdpa torch_compile lowram highvram", Nothing, LeftOut(GPUS)),
    ("dynamo_backend", Text, LeftOut(GPUS)),
    ("cpu_offload_checkpointing", Nothing, LeftOut(GPUS)),
    ("ddp_timeout", Number, LeftOut(RING)),
    ("ddp_gradient_as_bucket_view ddp_static_graph deepspeed", Nothing, LeftOut(RING)),
    ("zero3_init_flag zero3_save_16bit_model fp16_master_weights_and_gradients", Nothing, LeftOut(RING)),
    ("zero_stage", Number, LeftOut(RING)),
    ("offload_optimizer_device offload_optimizer_nvme_path", Text, LeftOut(RING)),
    ("offload_param_device offload_param_nvme_path", Text, LeftOut(RING)),
];

const RING: &str = "the workers form a ring of their own";
