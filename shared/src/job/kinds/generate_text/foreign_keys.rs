//! What people who know other programs that make texts write.

use crate::job::reader::ForeignKeys;

pub(in crate::job) const FOREIGN_KEYS: ForeignKeys = &[
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
