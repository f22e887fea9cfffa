//! kohya's `train_network.py`.

use ringtune_shared::job::PredictionType;

use super::{
    lora::{lora, refused, remarks},
    *,
};

/// As kohya's graphical program writes it, for SDXL in https://github.com/bmaltais/kohya_ss/issues/1313.
const LINE: &str = r#"accelerate launch --num_cpu_threads_per_process=2 "./train_network.py" --enable_bucket
  --min_bucket_reso=256 --max_bucket_reso=2048 --pretrained_model_name_or_path="sd.safetensors"
  --train_data_dir="train" --resolution="512,512" --output_dir="out" --logging_dir="log" --network_alpha="1"
  --save_model_as=safetensors --network_module=networks.lora --unet_lr=0.0004 --network_dim=256
  --output_name="s0fia" --lr_scheduler_num_cycles="10" --no_half_vae --learning_rate="0.0003"
  --lr_scheduler="constant" --train_batch_size="2" --max_train_steps="8000" --save_every_n_epochs="1"
  --mixed_precision="bf16" --save_precision="bf16" --cache_latents --cache_latents_to_disk
  --optimizer_type="AdamW8bit" --optimizer_args weight_decay=0.1 "betas=0.9,0.99" eps=1e-7
  --max_data_loader_n_workers="0" --bucket_reso_steps=64 --gradient_checkpointing --xformers
  --bucket_no_upscale --noise_offset=0.0357 --sample_sampler=euler_a --sample_prompts="prompt.txt"
  --sample_every_n_steps="1000" --min_snr_gamma=5 --caption_extension=".txt" --shuffle_caption --keep_tokens=1
  --caption_dropout_rate=0.1 --clip_skip=1 --network_train_unet_only"#;

const LEAST: &str = "train_network.py --pretrained_model_name_or_path m --train_data_dir train ";
const UNET: &str = "train_network.py --pretrained_model_name_or_path m --train_data_dir train \
    --network_train_unet_only ";

#[test]
fn a_command_line_of_the_graphical_program_becomes_a_job() {
    let translated = translate(LINE, folders).unwrap();
    assert_eq!(translated.output_dir.as_deref(), Some("out"));
    let job = parse_job_toml(&translated.job).unwrap();
    assert_eq!((job.common.name.as_str(), job.common.model.base.as_str()), ("s0fia", "sd.safetensors"));
    let own = lora(LINE);
    let folders: Vec<(&str, u32)> =
        own.data.folders.iter().map(|folder| (folder.images.as_str(), folder.repeats)).collect();
    assert_eq!(folders, [("train/10_dog", 10), ("train/2_old dog", 2)]);
    assert_eq!((own.lora.rank, own.lora.alpha, &own.lora.targets[..]), (256, 1.0, &["all".to_owned()][..]));
    let train = own.train;
    assert_eq!((train.learning_rate, train.train_batch_size, train.max_train_steps), (4e-4, 2, 8000));
    assert_eq!((train.adam_weight_decay, train.adam_beta1, train.adam_beta2), (0.1, 0.9, 0.99));
    assert_eq!((train.adam_epsilon, train.lr_num_cycles, train.snr_gamma), (1e-7, 10, 5.0));
    assert_eq!((train.resolution, train.max_bucket_reso, train.enable_bucket), (512, 2048, true));
    assert_eq!((train.bucket_no_upscale, train.center_crop, train.noise_offset), (true, false, 0.0357));
    assert_eq!((train.shuffle_tags, train.keep_tags, train.caption_dropout), (true, 1, 0.1));
    assert_eq!((train.mixed_precision, train.previews.validation_steps), (MixedPrecision::Bf16, 1000));
    let remarks = translated.remarks.join("\n");
    for says in ["--save_every_n_epochs is left out", "--optimizer_type: AdamW; "] {
        assert!(remarks.contains(says), "{says} is missing in:\n{remarks}");
    }
}

/// docs/train_network.md of sd-scripts.
#[test]
fn a_file_of_datasets_is_refused_and_the_rest_is_told_too() {
    let line = "accelerate launch --num_cpu_threads_per_process 1 train_network.py \
        --pretrained_model_name_or_path=sd --dataset_config=my_dataset_config.toml --output_dir=out \
        --output_name=my_lora --save_model_as=safetensors --network_module=networks.lora --network_dim=16 \
        --network_alpha=1 --learning_rate=1e-4 --optimizer_type=AdamW8bit --lr_scheduler=constant --sdpa \
        --max_train_epochs=10 --save_every_n_epochs=1 --mixed_precision=fp16 --gradient_checkpointing";
    let found = translate(line, folders).unwrap_err();
    assert!(found.problems[0].starts_with("--dataset_config: such files are not read"), "{found:?}");
    assert!(found.unknown.contains(&"data.images".to_owned()));
    assert!(found.rest.contains("num_train_epochs = 10") && !found.rest.contains("max_train_steps"));
}

#[test]
fn the_scripts_defaults_are_written_out() {
    let spec = parse_job_toml(&translate(UNET, folders).unwrap().job).unwrap();
    assert_eq!(spec.common.model.prediction_type, Some(PredictionType::Epsilon));
    let own = lora(UNET);
    assert_eq!((own.lora.rank, own.lora.alpha, &own.lora.targets[..]), (4, 1.0, &["all".to_owned()][..]));
    let train = own.train;
    assert_eq!((train.learning_rate, train.train_batch_size, train.max_train_steps), (2e-6, 1, 1600));
    assert_eq!((train.adam_weight_decay, train.max_grad_norm, train.lr_warmup_steps), (0.01, 1.0, 0));
    assert_eq!((train.mixed_precision, train.save_steps, train.center_crop), (MixedPrecision::No, 0, true));
    assert_eq!((train.min_bucket_reso, train.max_bucket_reso, train.bucket_reso_steps), (256, 1024, 64));
    let velocity = format!("{UNET}--v2 --v_parameterization --zero_terminal_snr --max_train_epochs 3");
    let spec = parse_job_toml(&translate(&velocity, folders).unwrap().job).unwrap();
    assert_eq!(spec.common.model.prediction_type, Some(PredictionType::VPrediction));
    let train = lora(&velocity).train;
    assert_eq!((train.num_train_epochs, train.max_train_steps), (Some(3), 0));
    assert!(train.rescale_betas_zero_snr);
    let both = format!("{UNET}--max_train_steps 9 --max_train_epochs 3");
    assert_eq!(lora(&both).train.max_train_steps, 0);
    assert!(remarks(&both).contains("--max_train_steps is left out"));
    let launcher = format!("accelerate launch --mixed_precision bf16 -n 2 {UNET}");
    assert_eq!(lora(&launcher).train.mixed_precision, MixedPrecision::No);
    assert!(remarks(&launcher).contains("the launcher's --mixed_precision is left out"));
}

#[test]
fn the_text_encoder_learns_too_unless_it_is_told_not_to() {
    let rate = |options: &str| {
        let job = job_of(&format!("{LEAST}{options}"));
        assert!(job.contains("train_text_encoder = true"), "{job}");
        job.lines().find_map(|line| line.strip_prefix("text_encoder_learning_rate = ").map(str::to_owned))
    };
    // It is written only where it is another one.
    for (options, written) in [
        ("", None),
        ("--text_encoder_lr 5e-5", Some("5e-5")),
        ("--text_encoder_lr 5e-5 --unet_lr 5e-5", None),
        ("--unet_lr 1e-4", Some("2e-6")),
        ("--learning_rate 1e-4 --unet_lr=1e-4", None),
    ] {
        assert_eq!(rate(options).as_deref(), written, "{options}");
    }
    assert!(!job_of(UNET).contains("train_text_encoder"));
    assert!(refused(&format!("{LEAST}--text_encoder_lr 1e-5 1e-5")).contains("one text encoder"));
    assert_eq!(lora(&format!("{LEAST}--text_encoder_lr 0 --unet_lr 1e-4")).train.learning_rate, 1e-4);
    assert!(remarks(&format!("{UNET}--text_encoder_lr 5e-5")).contains("--text_encoder_lr is left out"));
    assert!(refused(&format!("{UNET}--unet_lr 0.0")).contains("--unet_lr: got 0"));
    assert!(refused(&format!("{LEAST}--text_encoder_lr fast")).contains("\"fast\" is not a number"));
}

#[test]
fn folders_say_how_often_and_what() {
    let line = |folder: &str| UNET.replace("train_data_dir train", &format!("train_data_dir {folder}"));
    let named = lora(&line("plain/"));
    assert_eq!(named.prompt.instance_prompt, "sks dog");
    assert_eq!(named.data.folders[0].images, "plain/10_sks dog");
    let more = format!("{} --shuffle_caption --keep_tokens 1 --caption_prefix 'a photo of'", line("plain"));
    assert_eq!(lora(&more).prompt.instance_prompt, "a photo of sks dog");
    assert_eq!(remarks(&more).matches("the folder's name is the whole prompt").count(), 2);
    assert!(refused(&line("mixed")).contains("mixed/1_cat has no captions"));
    assert!(refused(&line("notes")).contains("called like 10_dog"));
    assert!(refused(&line("nowhere")).contains("nowhere: there is no such folder"));
    assert!(refused(&line("'$DIR'")).contains("has a variable"));
    let around = format!("{UNET}--caption_prefix 'art,' --caption_suffix=', best'");
    assert_eq!(lora(&around).train.templates, ["art, [caption] , best"]);
    assert!(refused(&format!("{around} --shuffle_caption")).contains("--shuffle_caption: write"));
    let class = lora(&format!("{UNET}--reg_data_dir class --prior_loss_weight 0.5"));
    assert_eq!(
        (class.prompt.class_images.as_str(), class.prompt.class_prompt.as_str()),
        ("class/1_dog", "dog")
    );
    assert_eq!((class.denoiser.num_class_images, class.denoiser.prior_loss_weight), (1, 0.5));
    assert!(refused(&format!("{UNET}--reg_data_dir train")).contains("leave one"));
    let masked = format!("{UNET}--conditioning_data_dir masks");
    assert_eq!(lora(&format!("{masked} --masked_loss")).data.masks, "masks");
    assert!(remarks(&masked).contains("without --masked_loss"));
    assert!(lora(&format!("{UNET}--alpha_mask --masked_loss")).data.alpha_mask.is_some());
    assert!(remarks(&format!("{UNET}--prior_loss_weight=0.5")).contains("without --reg_data_dir"));
}

#[test]
fn arguments_in_arguments_are_options_too() {
    for (option, says) in [
        (
            "--network_args conv_dimm=8",
            "is not an option of train_network.py; did you mean --network_args conv_dim?",
        ),
        ("--network_args module_dropout=0.1", "--network_args module_dropout: got \"0.1\"; allowed: 0"),
        ("--network_args down_lr_weight=sine", "--network_args down_lr_weight: all blocks"),
        ("--network_args conv_dim=big", "--network_args conv_dim: \"big\" is not a number"),
        ("--optimizer_args relative_step=False", "--optimizer_args relative_step is not an option"),
        ("--optimizer_args betas=0.9", "two numbers"),
    ] {
        let problems = refused(&format!("{UNET}{option}"));
        assert!(problems.contains(says), "{problems}");
    }
    let own = job_of(&format!("{UNET}--network_args conv_dim=8 rank_dropout=0.1"));
    assert!(own.contains("conv_alpha = 1\nconv_rank = 8\nrank_dropout = 0.1"), "{own}");
    let alone = format!("{UNET}--network_args conv_alpha=4 module_dropout=0");
    assert_eq!(lora(&alone), lora(UNET));
    assert!(remarks(&alone).contains("conv_alpha is left out"));
    assert_eq!(lora(&format!("{UNET}--optimizer_args \"betas=(0.8, 0.9)\"")).train.adam_beta1, 0.8);
}

#[test]
fn values_that_mean_something_else_here_are_refused() {
    for (option, says) in [
        ("--resolution 512,768", "allowed: squares"),
        ("--resolution big", "as in 512"),
        ("--optimizer_type Lion", "allowed: AdamW"),
        ("--loss_type huber", "--loss_type: got \"huber\"; allowed: l2"),
        ("--network_module lycoris.kohya", "allowed: networks.lora"),
        ("--save_model_as ckpt", "allowed: safetensors"),
        ("--max_token_length 225", "75 tokens"),
        ("--clip_skip 2", "allowed: 1"),
        ("--caption_extension .tags", "allowed: .txt, .caption"),
        ("--caption_tag_dropout_rate 0.1", "allowed: 0"),
        ("--masked_loss", "--masked_loss needs --conditioning_data_dir"),
        ("--lr_warmup_steps 5% --max_train_epochs 3", "a share of steps"),
        ("--lr_warmup_steps soon", "\"soon\" is not a number"),
        ("--lr_scheduler_power 2", "allowed: 1"),
        ("--huggingface_repo_id a/b", "upload the output folder"),
        ("--base_weights a b --resume x", "merge them"),
    ] {
        let problems = refused(&format!("{UNET}{option}"));
        assert!(problems.contains(says), "{problems}");
    }
    let nothing = format!(
        "{UNET}--loss_type l2 --caption_tag_dropout_rate 0.0 --keep_tokens_separator '' --validation_split 0 \
         --optimizer_type adamw --clip_skip 1 --min_timestep 0 --max_timestep=1000 --lr_decay_steps 0 --sdpa"
    );
    assert_eq!(lora(&nothing), lora(UNET));
    for (given, steps) in [("100", 100), ("0.05", 80), ("5%", 80), ("0", 0)] {
        assert_eq!(lora(&format!("{UNET}--lr_warmup_steps {given}")).train.lr_warmup_steps, steps, "{given}");
    }
}
