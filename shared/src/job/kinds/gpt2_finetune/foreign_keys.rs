//! What people who know other trainers of language models write.
//!
//! Sources: nanoGPT's `train.py` and transformers' `run_clm.py`.

use crate::job::reader::ForeignKeys;

pub(in crate::job) const FOREIGN_KEYS: ForeignKeys = &[
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
