//! Options that other trainers have under a name that a job file does not know, and what to do instead.
//!
//! Sources: diffusers' `textual_inversion.py`; `train_textual_inversion.py` of kohya's sd-scripts; AUTOMATIC1111's
//! textual inversion tab; for GPT-2 nanoGPT's `train.py` and transformers' `run_clm.py`.

use super::{JobKind, reader::Advice};

/// Name there, and what to write instead or why there is nothing to write.
const FOREIGN_KEYS: &[(&str, &str)] = &[
    // diffusers
    ("pretrained_model_name_or_path", "write [model] base"),
    ("tokenizer_name", "write [model] tokenizer"),
    ("train_data_dir", "write [data] images"),
    ("output_dir", "say where the artifacts go with -o of `ringtune run` or `ringtune fetch`"),
    ("num_processes", "write [cluster] world_size"),
    (
        "gradient_checkpointing",
        "leave it out: a step keeps little enough as it is, and recomputing would only cost time",
    ),
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
    ("caption_extension", "leave it out: captions are .txt files, used where a template has [caption]"),
    ("image_dir", "write [data] images, or [data] folders for several"),
    ("num_repeats", "write [data] folders, each with its repeats"),
    ("sdpa", "leave it out: attention is exact and made for CPUs"),
    ("xformers", "leave it out: it is about GPUs"),
    ("mem_eff_attn", "leave it out: attention never keeps its scores"),
    ("cache_latents", "leave it out: pictures are encoded once, before the first step"),
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

/// Keys of trainers of language models.
const FOREIGN_KEYS_OF_GPT2: &[(&str, &str)] = &[
    // nanoGPT
    ("dataset", "write [gpt2] tokens, the folder that `ringtune prepare-text` made"),
    ("dtype", "write [gpt2] mixed_precision = \"bf16\", or \"no\" for fp32"),
    ("device", "leave it out: it is about GPUs"),
    ("backend", "leave it out: ranks exchange gradients in a ring of their own"),
    ("compile", "leave it out: there is nothing to compile"),
    ("out_dir", "say where the artifacts go with -o of `ringtune run` or `ringtune fetch`"),
    ("log_interval", "leave it out: every step is reported"),
    ("eval_only", "not supported: a job trains, and validates every eval_interval steps"),
    ("always_save_checkpoint", "write [gpt2] checkpointing_steps: a checkpoint is kept every so many steps"),
    ("wandb_log", "write [gpt2] report_to: there are events for TensorBoard"),
    ("wandb_project", "write [gpt2] report_to: there are events for TensorBoard"),
    ("wandb_run_name", "write name at the top of the job file"),
    // transformers' config.json, which run_clm.py takes overrides of
    ("attn_pdrop", "write [gpt2] dropout: one share for all"),
    ("embd_pdrop", "write [gpt2] dropout: one share for all"),
    ("resid_pdrop", "write [gpt2] dropout: one share for all"),
    // run_clm.py
    ("model_name_or_path", "write [model] base"),
    ("train_file", "write [gpt2] tokens, the folder that `ringtune prepare-text` made"),
    ("output_dir", "say where the artifacts go with -o of `ringtune run` or `ringtune fetch`"),
    ("per_device_train_batch_size", "write [gpt2] batch_size"),
    ("max_steps", "write [gpt2] max_iters"),
    ("num_train_epochs", "write [gpt2] max_iters: windows are drawn at random, so that there are no passes"),
    ("lr_scheduler_type", "write [gpt2] decay_lr: a cosine, or always the same rate"),
    ("warmup_steps", "write [gpt2] warmup_iters"),
    ("adam_beta1", "write [gpt2] beta1"),
    ("adam_beta2", "write [gpt2] beta2"),
    ("max_grad_norm", "write [gpt2] grad_clip"),
    ("eval_steps", "write [gpt2] eval_interval"),
    ("save_steps", "write [gpt2] checkpointing_steps"),
    ("save_total_limit", "write [gpt2] checkpoints_total_limit"),
    ("bf16", "write [gpt2] mixed_precision = \"bf16\""),
    ("fp16", "write [gpt2] mixed_precision = \"bf16\": there is no fp16 here"),
    ("gradient_checkpointing", "leave it out: a step keeps what it needs to go back"),
    ("num_processes", "write [cluster] world_size"),
];

/// Keys of programs that generate texts.
const FOREIGN_KEYS_OF_TEXTS: &[(&str, &str)] = &[
    // nanoGPT's sample.py
    ("start", "write [generate_text] prompts, a list"),
    ("out_dir", "write [model] base; artifacts go where -o of `ringtune run` or `ringtune fetch` says"),
    ("init_from", "leave it out: [model] base says which model it is"),
    ("dtype", "write [generate_text] mixed_precision = \"bf16\", or \"no\" for fp32"),
    ("device", "leave it out: it is about GPUs"),
    ("compile", "leave it out: there is nothing to compile"),
    // transformers' generate, and run_generation.py
    ("model_name_or_path", "write [model] base"),
    ("prompt", "write [generate_text] prompts, a list"),
    ("num_return_sequences", "write [generate_text] num_samples"),
    ("length", "write [generate_text] max_new_tokens"),
    ("max_length", "write [generate_text] max_new_tokens: without the prompt's tokens"),
    ("do_sample", "write [generate_text] temperature = 0 for the most likely token, or above 0"),
    ("k", "write [generate_text] top_k"),
    ("p", "write [generate_text] top_p"),
    ("num_beams", "not supported: one token is chosen after the other"),
    ("repetition_penalty", "not supported: tokens are chosen by temperature, top_k and top_p"),
];

/// Advice for keys of other trainers of this kind; None: the kind is missing or unknown.
pub(super) fn advice(kind: Option<JobKind>) -> Advice {
    match kind {
        Some(JobKind::Gpt2Finetune) => |key| find(FOREIGN_KEYS_OF_GPT2, key),
        Some(JobKind::GenerateText) => |key| find(FOREIGN_KEYS_OF_TEXTS, key),
        Some(JobKind::TextualInversion | JobKind::Generate) | None => |key| find(FOREIGN_KEYS, key),
    }
}

fn find(keys: &'static [(&'static str, &'static str)], key: &str) -> Option<&'static str> {
    keys.iter().find(|(foreign, _)| *foreign == key).map(|(_, advice)| *advice)
}

#[cfg(test)]
mod tests {
    use super::{FOREIGN_KEYS, FOREIGN_KEYS_OF_GPT2, FOREIGN_KEYS_OF_TEXTS};
    use crate::job::parse_job_toml;

    /// Every key that an advice names exists, and no foreign key does: unknown keys alone come here.
    fn names_keys_that_there_are(head: &str, section: &str, keys: &[(&str, &str)]) {
        for (foreign, advice) in keys {
            let error =
                parse_job_toml(&format!("{head}[{section}]\n{foreign} = 1\n")).expect_err("no such key");
            let told = error.to_string();
            assert!(told.contains(advice), "{foreign}: {told}");
            // As people of nanoGPT write it: without sections.
            let error = parse_job_toml(&format!("{foreign} = 1\n{head}")).expect_err("no such key");
            assert!(error.to_string().contains(advice), "{foreign}: {error}");
            let Some((section, rest)) = advice.strip_prefix("write [").and_then(|rest| rest.split_once("] "))
            else {
                continue;
            };
            let key = rest.split([' ', ',', ':']).next().unwrap_or_default();
            let known =
                parse_job_toml(&format!("{head}[{section}]\n{key} = true\n")).expect_err("incomplete");
            assert!(
                !known.to_string().contains("unknown key") && !known.to_string().contains("not an option"),
                "{foreign} leads to {section}.{key}: {known}"
            );
        }
    }

    #[test]
    fn advice_names_keys_that_there_are() {
        names_keys_that_there_are("", "train", FOREIGN_KEYS);
        names_keys_that_there_are("kind = \"gpt2_finetune\"\n", "gpt2", FOREIGN_KEYS_OF_GPT2);
        let texts = "kind = \"generate_text\"\n";
        names_keys_that_there_are(texts, "generate_text", FOREIGN_KEYS_OF_TEXTS);
    }

    #[test]
    fn a_key_of_this_kind_is_told_its_own_section() {
        for (kind, home) in [("gpt2_finetune", "[gpt2]"), ("textual_inversion", "[train]")] {
            let error = parse_job_toml(&format!("kind = {kind:?}\nseed = 1\n")).expect_err("not there");
            assert!(
                error.to_string().contains(&format!("seed: unknown key here; it belongs to {home}")),
                "{error}"
            );
        }
        let error = parse_job_toml("kind = \"gpt2_finetune\"\nbatch_size = 12\n").expect_err("not there");
        assert!(error.to_string().contains("batch_size: unknown key here; it belongs to [gpt2]"), "{error}");
    }
}
