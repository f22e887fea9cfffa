//! All options of each script's parser, as its source has them: diffusers 58eb52c, kohya's sd-scripts 48d368f,
//! MosaicML's diffusion-benchmark 0a5fbaa.

/// examples/textual_inversion/textual_inversion.py, parse_args.
pub(super) const TEXTUAL_INVERSION: &str = "\
    save_steps save_as_full_pipeline num_vectors pretrained_model_name_or_path revision variant \
    tokenizer_name train_data_dir placeholder_token initializer_token learnable_property repeats \
    output_dir seed resolution center_crop train_batch_size num_train_epochs max_train_steps \
    gradient_accumulation_steps gradient_checkpointing learning_rate scale_lr lr_scheduler \
    lr_warmup_steps lr_num_cycles dataloader_num_workers adam_beta1 adam_beta2 adam_weight_decay \
    adam_epsilon push_to_hub hub_token hub_model_id logging_dir mixed_precision allow_tf32 report_to \
    validation_prompt num_validation_images validation_steps validation_epochs local_rank \
    checkpointing_steps checkpoints_total_limit resume_from_checkpoint \
    enable_xformers_memory_efficient_attention no_safe_serialization";

/// examples/text_to_image/train_text_to_image_lora.py, parse_args.
pub(super) const TEXT_TO_IMAGE_LORA: &str = "\
    pretrained_model_name_or_path revision variant dataset_name dataset_config_name train_data_dir \
    image_column caption_column validation_prompt num_validation_images validation_epochs \
    max_train_samples output_dir cache_dir seed resolution center_crop random_flip train_batch_size \
    num_train_epochs max_train_steps gradient_accumulation_steps gradient_checkpointing learning_rate \
    scale_lr lr_scheduler lr_warmup_steps snr_gamma use_8bit_adam allow_tf32 dataloader_num_workers \
    adam_beta1 adam_beta2 adam_weight_decay adam_epsilon max_grad_norm push_to_hub hub_token \
    prediction_type hub_model_id logging_dir mixed_precision report_to local_rank checkpointing_steps \
    checkpoints_total_limit resume_from_checkpoint enable_xformers_memory_efficient_attention \
    noise_offset rank image_interpolation_mode";

/// examples/dreambooth/train_dreambooth_lora.py, parse_args.
pub(super) const DREAMBOOTH_LORA: &str = "\
    pretrained_model_name_or_path revision variant tokenizer_name instance_data_dir class_data_dir \
    instance_prompt class_prompt validation_prompt num_validation_images validation_epochs \
    with_prior_preservation prior_loss_weight num_class_images output_dir seed resolution center_crop \
    train_text_encoder train_batch_size sample_batch_size num_train_epochs max_train_steps \
    checkpointing_steps checkpoints_total_limit resume_from_checkpoint gradient_accumulation_steps \
    gradient_checkpointing learning_rate scale_lr lr_scheduler lr_warmup_steps lr_num_cycles lr_power \
    dataloader_num_workers use_8bit_adam adam_beta1 adam_beta2 adam_weight_decay adam_epsilon \
    max_grad_norm push_to_hub hub_token hub_model_id logging_dir allow_tf32 report_to mixed_precision \
    prior_generation_precision local_rank enable_xformers_memory_efficient_attention \
    pre_compute_text_embeddings tokenizer_max_length text_encoder_use_attention_mask validation_images \
    class_labels_conditioning rank lora_dropout image_interpolation_mode";

/// examples/text_to_image/train_text_to_image.py, parse_args.
pub(super) const TEXT_TO_IMAGE: &str = "\
    input_perturbation pretrained_model_name_or_path revision variant dataset_name dataset_config_name \
    train_data_dir image_column caption_column max_train_samples validation_prompts output_dir cache_dir seed \
    resolution center_crop random_flip train_batch_size num_train_epochs max_train_steps \
    gradient_accumulation_steps gradient_checkpointing learning_rate scale_lr lr_scheduler lr_warmup_steps \
    snr_gamma dream_training dream_detail_preservation use_8bit_adam allow_tf32 use_ema offload_ema \
    foreach_ema non_ema_revision dataloader_num_workers adam_beta1 adam_beta2 adam_weight_decay adam_epsilon \
    max_grad_norm push_to_hub hub_token prediction_type hub_model_id logging_dir mixed_precision report_to \
    local_rank checkpointing_steps checkpoints_total_limit resume_from_checkpoint \
    enable_xformers_memory_efficient_attention noise_offset validation_epochs tracker_project_name \
    image_interpolation_mode";

/// MosaicML's benchmark.py.
pub(super) const BENCHMARK: &str = "\
    batch_size image_size remote local use_synth_data model_name use_ema wandb_name wandb_project \
    device_train_microbatch_size";

/// train_network.py, setup_parser, with the functions of library/ that it calls.
pub(super) const NETWORK: &str = "\
    console_log_level console_log_file console_log_simple v2 v_parameterization \
    pretrained_model_name_or_path tokenizer_cache_dir metadata_title metadata_author metadata_description \
    metadata_license metadata_tags metadata_usage_hint metadata_thumbnail metadata_merged_from \
    metadata_trigger_phrase metadata_preprocessor metadata_is_negative_embedding train_data_dir \
    cache_info shuffle_caption caption_separator caption_extension caption_extention keep_tokens \
    keep_tokens_separator secondary_separator enable_wildcard caption_prefix caption_suffix color_aug \
    flip_aug face_crop_aug_range random_crop debug_dataset resolution cache_latents vae_batch_size \
    cache_latents_to_disk skip_cache_check enable_bucket min_bucket_reso max_bucket_reso \
    bucket_reso_steps bucket_no_upscale resize_interpolation token_warmup_min token_warmup_step \
    alpha_mask dataset_class caption_dropout_rate caption_dropout_every_n_epochs caption_tag_dropout_rate \
    reg_data_dir in_json dataset_repeats output_dir output_name huggingface_repo_id huggingface_repo_type \
    huggingface_path_in_repo huggingface_token huggingface_repo_visibility save_state_to_huggingface \
    resume_from_huggingface async_upload save_precision save_every_n_epochs save_every_n_steps \
    save_n_epoch_ratio save_last_n_epochs save_last_n_epochs_state save_last_n_steps \
    save_last_n_steps_state save_state save_state_on_train_end resume train_batch_size max_token_length \
    mem_eff_attn torch_compile dynamo_backend xformers sdpa vae max_train_steps max_train_epochs \
    max_data_loader_n_workers persistent_data_loader_workers seed gradient_checkpointing \
    gradient_accumulation_steps mixed_precision full_fp16 full_bf16 fp8_base ddp_timeout \
    ddp_gradient_as_bucket_view ddp_static_graph clip_skip logging_dir log_with log_prefix \
    log_tracker_name wandb_run_name log_tracker_config wandb_api_key log_config noise_offset \
    noise_offset_random_strength multires_noise_iterations ip_noise_gamma ip_noise_gamma_random_strength \
    multires_noise_discount adaptive_noise_scale zero_terminal_snr min_timestep max_timestep loss_type \
    huber_schedule huber_c huber_scale lowram highvram sample_every_n_steps sample_at_first \
    sample_every_n_epochs sample_prompts sample_sampler config_file output_config prior_loss_weight \
    conditioning_data_dir masked_loss deepspeed zero_stage offload_optimizer_device \
    offload_optimizer_nvme_path offload_param_device offload_param_nvme_path zero3_init_flag \
    zero3_save_16bit_model fp16_master_weights_and_gradients optimizer_type use_8bit_adam \
    use_lion_optimizer learning_rate max_grad_norm optimizer_args lr_scheduler_type lr_scheduler_args \
    lr_scheduler lr_warmup_steps lr_decay_steps lr_scheduler_num_cycles lr_scheduler_power \
    fused_backward_pass lr_scheduler_timescale lr_scheduler_min_lr_ratio dataset_config min_snr_gamma \
    scale_v_pred_loss_like_noise_pred v_pred_like_loss debiased_estimation_loss weighted_captions \
    cpu_offload_checkpointing no_metadata save_model_as unet_lr text_encoder_lr fp8_base_unet \
    network_weights network_module network_dim network_alpha network_dropout network_args \
    network_train_unet_only network_train_text_encoder_only training_comment dim_from_weights \
    scale_weight_norms base_weights base_weights_multiplier no_half_vae skip_until_initial_step \
    initial_epoch initial_step validation_seed validation_split validate_every_n_steps \
    validate_every_n_epochs max_validation_steps";

/// networks/lora.py, create_network and parse_block_lr_kwargs.
pub(super) const NETWORK_ARGS: &str = "\
    conv_dim conv_alpha block_dims block_alphas conv_block_dims conv_block_alphas rank_dropout module_dropout \
    loraplus_lr_ratio loraplus_unet_lr_ratio loraplus_text_encoder_lr_ratio down_lr_weight mid_lr_weight \
    up_lr_weight block_lr_zero_threshold";
