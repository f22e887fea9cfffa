//! diffusers' two scripts for LoRAs.

use ringtune_shared::job::{Work, kinds::lora::LoraSpec};

use super::*;

/// What the line's job says, filled in.
pub(super) fn lora(line: &str) -> LoraSpec {
    let job = translate(line, folders).unwrap_or_else(|error| panic!("{error:?}")).job;
    match parse_job_toml(&job).unwrap_or_else(|error| panic!("{error}\n{job}")).work {
        Work::Lora(lora) => lora,
        other => panic!("{other:?}"),
    }
}

pub(super) fn remarks(line: &str) -> String {
    translate(line, folders).unwrap_or_else(|error| panic!("{error:?}")).remarks.join("\n")
}

pub(super) fn refused(line: &str) -> String {
    translate(line, folders).unwrap_err().problems.join("\n")
}

/// examples/text_to_image/README.md, with a folder for the data set, and values for the variables.
const TEXT_TO_IMAGE: &str = r#"accelerate launch --mixed_precision="bf16" train_text_to_image_lora.py \
  --pretrained_model_name_or_path=CompVis/stable-diffusion-v1-4 \
  --train_data_dir=naruto --caption_column="text" \
  --resolution=512 --random_flip \
  --train_batch_size=1 \
  --num_train_epochs=100 --checkpointing_steps=5000 \
  --learning_rate=1e-04 --lr_scheduler="constant" --lr_warmup_steps=0 \
  --seed=42 \
  --output_dir="sd-naruto-model-lora" \
  --validation_prompt="cute dragon creature" --report_to="wandb""#;

/// examples/dreambooth/README.md, with values for the variables, and without --push_to_hub.
const DREAMBOOTH: &str = r#"accelerate launch train_dreambooth_lora.py \
  --pretrained_model_name_or_path=CompVis/stable-diffusion-v1-4  \
  --instance_data_dir=dog \
  --output_dir=path-to-save-model \
  --instance_prompt="a photo of sks dog" \
  --resolution=512 \
  --train_batch_size=1 \
  --gradient_accumulation_steps=1 \
  --checkpointing_steps=100 \
  --learning_rate=1e-4 \
  --report_to="wandb" \
  --lr_scheduler="constant" \
  --lr_warmup_steps=0 \
  --max_train_steps=500 \
  --validation_prompt="A photo of sks dog in a bucket" \
  --validation_epochs=50 \
  --seed="0""#;

const LEAST: &str = "train_dreambooth_lora.py --pretrained_model_name_or_path m --instance_data_dir d \
    --instance_prompt 'a sks dog' ";

#[test]
fn the_documentations_command_line_trains_on_captions() {
    let translated = translate(TEXT_TO_IMAGE, nowhere).unwrap();
    assert_eq!(translated.output_dir.as_deref(), Some("sd-naruto-model-lora"));
    let job = parse_job_toml(&translated.job).unwrap();
    assert_eq!(job.common.model.base, "hf://CompVis/stable-diffusion-v1-4");
    let LoraSpec { data, prompt, train, denoiser, lora, .. } = lora(TEXT_TO_IMAGE);
    assert_eq!((data.images.as_str(), data.caption_column.as_str()), ("naruto", "text"));
    assert_eq!(prompt.instance_prompt, "");
    assert_eq!((train.train_batch_size, train.num_train_epochs, train.repeats), (1, Some(100), 1));
    assert_eq!((train.learning_rate, train.lr_warmup_steps, train.seed), (1e-4, 0, 42));
    assert_eq!((train.checkpointing_steps, train.mixed_precision), (5000, MixedPrecision::Bf16));
    assert_eq!(train.previews.validation_prompt, "cute dragon creature");
    assert_eq!((lora.rank, lora.alpha, &lora.targets[..]), (4, 4.0, &["attention".to_owned()][..]));
    let remarks = translated.remarks.join("\n");
    assert!(remarks.contains("random squares") && remarks.contains("--report_to is left out"), "{remarks}");
    assert!(denoiser.random_flip);
    assert!(
        job_of(&TEXT_TO_IMAGE.replace("--train_data_dir=naruto", "--dataset_name=ada/naruto"))
            .contains("source = \"hf://datasets/ada/naruto\"")
    );
}

#[test]
fn the_documentations_command_line_trains_on_one_prompt() {
    let LoraSpec { data, prompt, train, lora, .. } = lora(DREAMBOOTH);
    assert_eq!((data.images.as_str(), prompt.instance_prompt.as_str()), ("dog", "a photo of sks dog"));
    assert_eq!((train.max_train_steps, train.num_train_epochs), (500, None));
    assert_eq!((train.train_batch_size, train.learning_rate, lora.rank), (1, 1e-4, 4));
    let remarks = remarks(DREAMBOOTH);
    assert!(remarks.contains("--validation_epochs is left out"), "{remarks}");
    let pushed = translate(&format!("{DREAMBOOTH} --push_to_hub"), nowhere).unwrap_err();
    assert_eq!((pushed.script, pushed.problems.len()), ("train_dreambooth_lora.py", 1));
}

#[test]
fn defaults_that_differ_are_written_out() {
    let own = lora("train_text_to_image_lora.py --pretrained_model_name_or_path m --train_data_dir d").train;
    assert_eq!((own.train_batch_size, own.learning_rate, own.num_train_epochs), (16, 1e-4, Some(100)));
    assert_eq!((own.max_grad_norm, own.center_crop, own.lr_warmup_steps), (1.0, true, 500));
    let own = lora(LEAST).train;
    assert_eq!((own.train_batch_size, own.learning_rate, own.num_train_epochs), (4, 5e-4, Some(1)));
    assert_eq!((own.max_grad_norm, own.center_crop, own.lr_warmup_steps), (1.0, true, 500));
}

#[test]
fn pictures_of_a_class_count_only_where_they_are_asked_for() {
    let class = format!("{LEAST}--class_data_dir dogs --class_prompt 'a dog' --num_class_images 9");
    let said = remarks(&class);
    for option in ["class_data_dir", "class_prompt", "num_class_images"] {
        let says = format!("--{option} is left out: it has no effect without --with_prior_preservation");
        assert!(said.contains(&says), "{said}");
    }
    let asked = job_of(&format!("{class} --with_prior_preservation --prior_loss_weight=1.0"));
    for written in ["class_images = \"dogs\"", "class_prompt = \"a dog\"", "num_class_images = 9"] {
        assert!(asked.contains(written), "{asked}");
    }
    let alone = refused(&format!("{LEAST}--with_prior_preservation"));
    assert_eq!(
        alone,
        "--with_prior_preservation needs --class_data_dir\n--with_prior_preservation needs --class_prompt"
    );
}

#[test]
fn what_would_be_another_result_is_refused_and_what_means_nothing_is_not() {
    for (option, says) in [
        ("--lr_power 2", "--lr_power: got \"2\"; allowed: 1"),
        ("--tokenizer_max_length=128", "--tokenizer_max_length: got \"128\"; allowed: 77"),
        ("--validation_images a.png b.png --text_encoder_use_attention_mask", "--validation_images: "),
        ("--class_labels_conditioning=timesteps", "--class_labels_conditioning: "),
        ("--instance_prompt $P", "--instance_prompt: \"$P\" has a variable"),
    ] {
        let problems = refused(&format!("{LEAST}{option}"));
        assert!(problems.starts_with(says), "{problems}");
    }
    let nothing = format!(
        "{LEAST}--lora_dropout 0.0 --lr_power 1.0 --tokenizer_max_length 77 --pre_compute_text_embeddings \
         --use_8bit_adam --image_interpolation_mode lanczos --local-rank -1"
    );
    assert_eq!(lora(&nothing), lora(LEAST));
    let captions = "train_text_to_image_lora.py --pretrained_model_name_or_path m --train_data_dir d ";
    for (option, says) in [
        ("--image_column picture", "file_name"),
        ("--max_train_samples 9", "take some out"),
        ("--dataset_config_name x", "--train_data_dir"),
    ] {
        assert!(refused(&format!("{captions}{option}")).contains(says), "{option}");
    }
    let own = lora(&format!("{captions}--snr_gamma 5 --noise_offset=0.1 --rank 8 --center_crop"));
    assert_eq!((own.train.snr_gamma, own.train.noise_offset, own.lora.rank), (5.0, 0.1, 8));
}
